"""Own data in an .npz file: images or rows, with labels or targets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gramian.train.data.class_names import in_order
from gramian.train.data.dataset import Dataset, Splits, check_points, split_off_test
from gramian.train.data.errors import DataError, DataMissingError

Array = npt.NDArray[Any]
HALVES = ("x_train", "y_train", "x_test", "y_test")
WHOLE = ("x", "y")


def read_npz(path: Path) -> Splits:
    """x_train, y_train, x_test, y_test; or x, y of which a fixed fifth is the test set."""
    with _naming(path):
        arrays = _arrays(path, HALVES, WHOLE)
        if len(arrays) == len(WHOLE):
            return split_off_test(_dataset(arrays, "x", "y", _names("y", arrays["y"])))
        names = _names("y_train", arrays["y_train"])
        if names:
            _check_known(names, _names("y_test", arrays["y_test"]))
        train = _dataset(arrays, "x_train", "y_train", names)
        return Splits(train, _dataset(arrays, "x_test", "y_test", names))


def read_inputs(path: Path) -> Tensor:
    """The data points to predict: the array x, or x_test, of an .npz file."""
    with _naming(path):
        ((key, array),) = _arrays(path, ("x",), ("x_test",)).items()
        points = _points(key, array)
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
        with open(path, "rb") as stream:
            return _chosen(np.load(stream, allow_pickle=False), choices)
    except DataError:
        raise
    except Exception as error:  # a damaged zip can raise almost anything
        raise DataError(f"cannot be read as an .npz file: {error}") from error


def _chosen(file: Any, choices: tuple[tuple[str, ...], ...]) -> dict[str, Array]:
    """The arrays with the right names."""
    if isinstance(file, np.ndarray):
        raise DataError("holds one array without a name: save it with numpy.savez")
    keys = next((keys for keys in choices if set(keys) <= set(file.files)), None)
    if keys is None:
        raise DataError(
            f"must hold the arrays {' or '.join(', '.join(keys) for keys in choices)}; it holds "
            f"{', '.join(sorted(file.files)) or 'none'}"
        )
    return {key: _array(file, key) for key in keys}


def _array(file: Any, key: str) -> Array:
    """One array, in the byte order of this machine."""
    try:
        array = file[key]
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{key} holds Python objects, which could run code when they are read: save plain "
                "numbers or strings"
            ) from error
        raise
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))


def _dataset(arrays: dict[str, Array], x: str, y: str, names: tuple[str, ...]) -> Dataset:
    """One half, with errors that say which."""
    points, labels = _points(x, arrays[x]), _labels(y, arrays[y], names)
    try:
        return Dataset(points, labels, names)
    except DataError as error:
        raise DataError(f"{x} and {y}: {error}") from error


def _points(key: str, x: Array) -> Tensor:
    """Images [N, C, H, W] or rows [N, D]."""
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        return torch.from_numpy(x[:, None] if x.ndim == 3 else _channels_first(key, x))
    if np.issubdtype(x.dtype, np.floating) and x.ndim == 2:
        return torch.from_numpy(x.astype(np.float32 if x.dtype.itemsize <= 4 else np.float64))
    raise DataError(
        f"{key} must be images, uint8 of shape [N,H,W], [N,H,W,C] or [N,C,H,W], or rows, floating "
        f"point of shape [N,D]; got {x.dtype} of shape {list(x.shape)}"
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


def _names(key: str, y: Array) -> tuple[str, ...]:
    """Class names in order; none for regression targets."""
    if y.size == 0:
        raise DataError(f"{key} is empty, of shape {list(y.shape)}")
    if y.dtype.kind in "iubUS":
        if y.ndim != 1:
            raise DataError(f"{key} must be one label for each data point, got {list(y.shape)}")
        names = tuple(str(value) for value in np.unique(_text(y)).tolist())
        return in_order(names) if y.dtype.kind in "US" else names
    if y.dtype.kind != "f":
        raise DataError(f"{key} must be integers, strings or floating point, got {y.dtype}")
    if y.ndim == 1 and np.array_equal(y, np.round(y)):
        raise DataError(
            f"{key} holds whole numbers as {y.dtype}: save integers for classes, or shape [N, 1] "
            "for regression targets"
        )
    return ()


def _check_known(train: tuple[str, ...], test: tuple[str, ...]) -> None:
    """Refuse test labels that training has never seen."""
    strangers = [name for name in test if name not in train]
    if strangers:
        raise DataError(f"y_test has classes that y_train has not: {', '.join(strangers[:5])}")


def _labels(key: str, y: Array, names: tuple[str, ...]) -> Tensor:
    """Class numbers [N] or targets [N, T]."""
    if names:
        if y.dtype.kind not in "iubUS":
            raise DataError(f"{key} must be labels of the same kind as y_train, got {y.dtype}")
        number = {name: index for index, name in enumerate(names)}
        return torch.tensor([number[str(value)] for value in _text(y).tolist()], dtype=torch.int64)
    if y.dtype.kind != "f":
        raise DataError(f"{key} must be targets like y_train, got {y.dtype}")
    targets = y[:, None] if y.ndim == 1 else y
    return torch.from_numpy(targets.astype(np.float32 if y.dtype.itemsize <= 4 else np.float64))


def _text(y: Array) -> Array:
    """Byte strings as text; everything else as it is."""
    return np.char.decode(y, "utf-8") if y.dtype.kind == "S" else y
