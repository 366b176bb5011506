"""Own data in an .npz file: images or rows, with labels or targets."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import Tensor

from gramian.train.data.data_errors import DataError, DataMissingError
from gramian.train.data.dataset import Dataset, Splits, check_points, split_off_test
from gramian.train.data.targets import Array, as_targets, class_names

HALVES = ("x_train", "y_train", "x_test", "y_test")
WHOLE = ("x", "y")


def read_npz(path: Path) -> Splits:
    """x_train, y_train, x_test, y_test; or x, y of which a fixed fifth is the test set."""
    with _naming(path):
        arrays = _arrays(path, HALVES, WHOLE)
        if len(arrays) == len(WHOLE):
            return split_off_test(_dataset(arrays, "x", "y", class_names("y", arrays["y"])))
        names = class_names("y_train", arrays["y_train"])
        if names:
            _check_known(names, class_names("y_test", arrays["y_test"]))
        train = _dataset(arrays, "x_train", "y_train", names)
        return Splits(train, _dataset(arrays, "x_test", "y_test", names))


def read_inputs(path: Path) -> Tensor:
    """The data points to predict: the array x, or x_test, of an .npz file."""
    with _naming(path):
        ((key, array),) = _arrays(path, ("x",), ("x_test",)).items()
        points = as_points(key, array)
        check_points(points)
        return points


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the file's name in front of an error that passes through."""
    try:
        yield
    except DataError as error:
        raise type(error)(f"{path}: {error}") from error


def _arrays(path: Path, *choices: tuple[str, ...]) -> dict[str, Array]:
    """The first of the choices of names that the file holds; never Python objects."""
    if not path.is_file():
        raise DataMissingError("there is no such file")
    try:
        with path.open("rb") as stream:
            if stream.read(6) == b"\x93NUMPY":
                raise DataError("holds one array without a name: save it with numpy.savez")
        with zipfile.ZipFile(path) as archive:
            sizes = {name.removesuffix(".npy"): _size(archive, name) for name in archive.namelist()}
            keys = _choose(sizes, choices)
            _check_size(sum(sizes[key] for key in keys))
            return {key: _array(archive, key) for key in keys}
    except DataError:
        raise
    except Exception as error:  # a damaged zip can raise almost anything
        raise DataError(
            f"cannot be read as an .npz file, which numpy.savez makes: {error}"
        ) from error


def _choose(sizes: Iterable[str], choices: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """The names to read."""
    keys = next((keys for keys in choices if set(keys) <= set(sizes)), None)
    if keys is None:
        raise DataError(
            f"must hold the arrays {' or '.join(', '.join(keys) for keys in choices)}; it holds "
            f"{', '.join(sorted(sizes)) or 'none'}"
        )
    return keys


def _size(archive: zipfile.ZipFile, name: str) -> int:
    """Bytes of an array in memory, by its own header and by the archive's list."""
    listed = archive.getinfo(name).file_size
    with archive.open(name) as stream:
        version = np.lib.format.read_magic(stream)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(stream)
    if dtype.hasobject:
        raise DataError(
            f"{name.removesuffix('.npy')} holds Python objects, which could run code when they are "
            "read: save plain numbers or strings"
        )
    size = math.prod(shape) * dtype.itemsize
    if size > listed:
        raise DataError(f"{name} is damaged: {size:,} bytes by its header, but it holds {listed:,}")
    return max(size, listed)


def _check_size(size: int) -> None:
    """Refuse before anything is unpacked what does not fit in memory."""
    free = psutil.virtual_memory().available
    if 2 * size > free:  # the arrays, and a copy of them
        raise DataError(
            f"unpacks to {size / 1e9:.3g} GB, and {free / 1e9:.3g} GB of memory are free, which "
            "must be twice as much: save fewer data points or a smaller type"
        )


def _array(archive: zipfile.ZipFile, key: str) -> Array:
    """One array, in the byte order of this machine."""
    with archive.open(f"{key}.npy") as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))


def _dataset(arrays: dict[str, Array], x: str, y: str, names: tuple[str, ...]) -> Dataset:
    """One half, with errors that say which."""
    points, labels = as_points(x, arrays[x]), as_targets(y, arrays[y], names)
    try:
        return Dataset(points, labels, names)
    except DataError as error:
        raise DataError(f"{x} and {y}: {error}") from error


def as_points(key: str, x: Array) -> Tensor:
    """Images [N, C, H, W], uint8 or floating point, or rows [N, D]."""
    real = np.issubdtype(x.dtype, np.floating)
    if real:
        x = x.astype(np.float32 if x.dtype.itemsize <= 4 else np.float64)
    if x.ndim in (3, 4) and (real or x.dtype == np.uint8):
        return torch.from_numpy(x[:, None] if x.ndim == 3 else _channels_first(key, x))
    if real and x.ndim == 2:
        return torch.from_numpy(x)
    raise DataError(
        f"{key} must be images, uint8 or floating point of shape [N,H,W], [N,H,W,C] or [N,C,H,W], "
        f"or rows, floating point of shape [N,D]; got {x.dtype} of shape {list(x.shape)}"
    )


def _channels_first(key: str, x: Array) -> Array:
    """[N, C, H, W], the channels being the axis of size 1 or 3."""
    first, last = x.shape[1] in (1, 3), x.shape[3] in (1, 3)
    if first and last:
        raise DataError(
            f"{key} of shape {list(x.shape)} is ambiguous: its second and its last axis could both "
            "be the channels; save images that are larger than 3 pixels"
        )
    if not first and not last:
        raise DataError(
            f"{key} of shape {list(x.shape)} has no axis of channels: the second or the last must "
            "be 1 (grey) or 3 (RGB)"
        )
    return x if first else np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def _check_known(train: tuple[str, ...], test: tuple[str, ...]) -> None:
    """Refuse test labels that training has never seen."""
    strangers = [name for name in test if name not in train]
    if strangers:
        raise DataError(f"y_test has classes that y_train has not: {', '.join(strangers[:5])}")
