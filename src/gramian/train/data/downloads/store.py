"""One canonical file per fetched data set: where it lies, how it is written, read and checked."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pooch  # type: ignore[import-untyped]

from gramian.train.data.data_errors import DataIntegrityError

Bytes = npt.NDArray[np.uint8]
NAMES = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True, slots=True)
class Arrays:
    """A data set as stored: images [N, C, H, W] and labels [N], all uint8."""

    x_train: Bytes
    y_train: Bytes
    x_test: Bytes
    y_test: Bytes

    def digest(self) -> str:
        """SHA-256 over the raw bytes of the four arrays, the same for every source."""
        total = hashlib.sha256()
        for name in NAMES:
            total.update(np.ascontiguousarray(getattr(self, name)).data)
        return total.hexdigest()


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The argument, else GRAMIAN_DATA_DIR, else the user's cache folder."""
    chosen = data_dir or os.environ.get("GRAMIAN_DATA_DIR") or pooch.os_cache("gramian")
    return Path(chosen).expanduser().absolute()


def save(arrays: Arrays, path: Path, scratch: Path) -> None:
    """Write the arrays and their digest by way of ``scratch``: all of the file, or none of it."""
    temporary = scratch / path.name
    contents = {name: getattr(arrays, name) for name in NAMES}
    with open(temporary, "wb") as file:
        np.savez(file, **contents, sha256=np.array(arrays.digest()))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read(path: Path) -> tuple[Arrays, str]:
    """The arrays of a stored file and the digest that was recorded with them."""
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = [file[name] for name in NAMES]
            recorded = str(file["sha256"])
    except Exception as error:  # a damaged zip can raise almost anything
        raise DataIntegrityError(f"{path} is damaged ({error}): {remedy(path.stem)}") from error
    if any(array.dtype != np.uint8 for array in arrays):
        raise DataIntegrityError(f"{path} holds arrays that are not uint8: {remedy(path.stem)}")
    return Arrays(*arrays), recorded


def remedy(name: str) -> str:
    """The command that fetches a data set, or fetches it again."""
    return f"run `gramian data fetch {name}`"
