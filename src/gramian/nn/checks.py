"""Checks at the boundary: a message with what was expected and what came."""

from __future__ import annotations

import torch
from torch import Tensor

from gramian.gram.errors import checks_are_deferred


def check_features(x: object, shape: tuple[int | str, ...], dtype: torch.dtype, what: str) -> None:
    """Raise unless ``x`` has the named shape (words stand for any size), the dtype, and is finite.

    Raises:
        TypeError: not a floating-point tensor of the model's dtype.
        ValueError: wrong rank or size, empty, NaN or infinite entries.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{what} must be a torch tensor, got {type(x).__name__}")
    if x.dtype != dtype:
        raise TypeError(
            f"{what} must have the model's dtype {dtype}, got {x.dtype}; "
            "convert the data with x.to(dtype) or the model with model.to(dtype)"
        )
    expected = "(" + ", ".join(map(str, shape)) + ")"
    fits = len(x.shape) == len(shape) and all(
        isinstance(want, str) or want == got for want, got in zip(shape, x.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{what} must have shape {expected}, got {tuple(x.shape)}")
    if x.numel() == 0:
        raise ValueError(f"{what} must not be empty, got shape {tuple(x.shape)}")
    bad = 0 if checks_are_deferred() else int((~x.isfinite()).sum())
    if bad:
        raise ValueError(f"{what} must be finite, got {bad} NaN or infinite entries")


def check_labels(labels: Tensor, num_classes: int, batch: int) -> None:
    """Raise unless ``labels`` are ``batch`` integers in [0, num_classes)."""
    if labels.dtype != torch.int64:
        raise TypeError(f"labels must be int64 class numbers, got {labels.dtype}")
    if labels.shape != (batch,):
        raise ValueError(f"labels must have shape ({batch},), got {tuple(labels.shape)}")
    if checks_are_deferred():
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"labels must lie in 0 … {num_classes - 1} ({num_classes} classes), "
            f"got values from {low} to {high}"
        )
