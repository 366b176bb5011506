"""What an array of targets is: classes, real numbers or counts."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gramian.train.data.class_names import in_order
from gramian.train.data.data_errors import DataError

Array = npt.NDArray[Any]
log = logging.getLogger("gramian")


def as_array(name: str, values: Any) -> Array:
    """Values as an array, which lists of several lengths are not."""
    try:
        return np.asarray(values)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise DataError(
            f"{name} must hold lists of equal lengths, got several: pad them, or leave some out"
        ) from error


def as_weights(values: Any) -> Array:
    """Weights of data points as an array of numbers."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"sample_weight must be a number for each data point, got {str(values)[:80]!r}: "
            "weights of classes are the parameter class_weight of an estimator"
        ) from error


def class_names(key: str, y: Array) -> tuple[str, ...]:
    """Class names in order, of integers or strings [N]; none for real targets and counts."""
    if y.size == 0:
        raise DataError(f"{key} is empty, of shape {list(y.shape)}")
    kind = y.dtype.kind
    if kind not in "iubfUS":
        raise DataError(f"{key} must be integers, strings or floating point, got {y.dtype}")
    if kind in "US" and y.ndim != 1:
        raise DataError(f"{key} must be one label for each data point, got {list(y.shape)}")
    if y.ndim == 1 and kind != "f":
        names = tuple(str(value) for value in np.unique(_text(key, y)).tolist())
        return in_order(names) if kind in "US" else names
    if y.ndim == 1 and np.array_equal(y, np.round(y)):
        log.info(
            "%s holds whole numbers as %s: they are taken as real targets. Save integers of shape "
            "[N] for classes, or of shape [N, 1] for counts",
            key,
            y.dtype,
        )
    return ()


def as_targets(key: str, y: Array, names: tuple[str, ...]) -> Tensor:
    """Class numbers [N] of known classes; real targets [N, T]; or counts [N, T]."""
    kind = y.dtype.kind
    if names:
        if kind not in "iubUS":
            raise DataError(f"{key} must be labels of the same kind as y_train, got {y.dtype}")
        number = {name: index for index, name in enumerate(names)}
        labels = [number[str(value)] for value in _text(key, y).tolist()]
        return torch.tensor(labels, dtype=torch.int64)
    targets = y[:, None] if y.ndim == 1 else y
    if kind in "iu":
        return torch.from_numpy(targets.astype(np.int64))
    if kind != "f":
        raise DataError(f"{key} must be targets like y_train, got {y.dtype}")
    return torch.from_numpy(targets.astype(np.float32 if y.dtype.itemsize <= 4 else np.float64))


def _text(key: str, y: Array) -> Array:
    """Byte strings as text; everything else as it is."""
    try:
        return np.char.decode(y, "utf-8") if y.dtype.kind == "S" else y
    except UnicodeDecodeError as error:
        raise DataError(
            f"{key} holds labels of bytes that are not UTF-8 text ({error.object!r}): decode them "
            "and save strings"
        ) from error
