"""One door to all data: by the name of a data set, or the path of custom data."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch

from gramian.train.data.data_errors import DataError, DataMissingError
from gramian.train.data.dataset import Dataset, Splits
from gramian.train.data.downloads.fetch import stored_arrays, stored_path
from gramian.train.data.downloads.releases import REGISTRY, find, unknown
from gramian.train.data.downloads.store import Bytes
from gramian.train.data.embedded import EMBEDDED
from gramian.train.data.own_folder import read_folder
from gramian.train.data.own_npz import read_npz


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """A data set in the list of all.

    Args:
        name: what ``load`` and ``fetch`` take.
        description: one line.
        size: bytes to download; 0 for an embedded one.
        shape: of one data point.
        classes: how many.
        stored: the file of a fetched data set, else None.
        embedded: whether it is part of the library, with nothing to fetch.
    """

    name: str
    description: str
    size: int
    shape: tuple[int, ...]
    classes: int
    stored: Path | None
    embedded: bool


def available(data_dir: str | Path | None = None) -> list[DatasetInfo]:
    """All data sets that have a name: the embedded ones, then the downloadable ones."""
    found = [
        DatasetInfo(name, data.description, 0, data.shape, data.classes, stored=None, embedded=True)
        for name, data in EMBEDDED.items()
    ]
    for entry in REGISTRY.values():
        path = stored_path(entry.name, data_dir)
        size = next(source.size for source in entry.sources if source.size)
        found.append(
            DatasetInfo(
                name=entry.name,
                description=entry.description,
                size=size,
                shape=entry.shape,
                classes=len(entry.class_names),
                stored=path if path.is_file() else None,
                embedded=False,
            )
        )
    return found


def load(name_or_path: str | Path, data_dir: str | Path | None = None) -> Splits:
    """A data set by its name, or custom data by a path (a name wins; ``./name`` is a path).

    Args:
        name_or_path: embedded or fetched data set; folder of images; .npz file; or a function that
            returns ``Splits``, as "module.function" of a module that is imported already.
        data_dir: where fetched data sets lie, else GRAMIAN_DATA_DIR, else the user's cache folder.
    """
    name = str(name_or_path)
    if name in EMBEDDED:
        return EMBEDDED[name].load()
    if name in REGISTRY:
        return _fetched(name, data_dir)
    return _own(Path(name_or_path).expanduser(), name)


def check_named(name: str, modules: Collection[str]) -> None:
    """Refuse data that a file names by a function, unless the function is of ``modules``.

    A function that a module has only imported from elsewhere is not its own.
    """
    path, (module, _, last) = Path(name).expanduser(), name.rpartition(".")
    if name in EMBEDDED or name in REGISTRY or path.exists() or module not in sys.modules:
        return
    home = getattr(getattr(sys.modules[module], last, None), "__module__", None)
    if not any(f"{home}.".startswith(f"{each}.") for each in modules):
        raise DataMissingError(
            f"a file names the function {name} as its data, which is called only if you name its "
            f"module: --import {module if home is None else home}"
        )


def _fetched(name: str, data_dir: str | Path | None) -> Splits:
    """A data set that has been fetched before."""
    entry = find(name)
    arrays = stored_arrays(entry, data_dir)

    def half(x: Bytes, y: Bytes) -> Dataset:
        return Dataset(torch.from_numpy(x), torch.from_numpy(y).long(), entry.class_names)

    return Splits(half(arrays.x_train, arrays.y_train), half(arrays.x_test, arrays.y_test))


def _own(path: Path, name: str) -> Splits:
    """One's own data."""
    if path.is_dir():
        return read_folder(path)
    if path.suffix.lower() == ".npz" and path.is_file():
        return read_npz(path)
    if path.is_file():
        raise DataError(f"{path} must be an .npz file or a folder of images")
    module, _, function = name.rpartition(".")
    if module in sys.modules:
        return _made_by(getattr(sys.modules[module], function, None), name)
    if path.suffix or len(path.parts) > 1:
        hint = ""
        if module and all(part.isidentifier() for part in name.split(".")):
            hint = (
                f"; if it is a function, import its module first (the program: --import {module})"
            )
        raise DataMissingError(f"there is no file or folder {path}{hint}")
    raise unknown(name)


def _made_by(function: object, name: str) -> Splits:
    """What a custom function returns."""
    if not callable(function):
        raise DataMissingError(f"{name} is not a function")
    splits = function()
    if not isinstance(splits, Splits):
        raise DataError(f"{name} must return gramian.Splits, got {type(splits).__name__}")
    return splits
