"""Checks at the boundary: a message with what was expected and what came."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from gramian.gram.errors import checks_are_deferred

Numbers = float | int | Sequence[float | int]


def check_positive(**settings: Numbers | None) -> None:
    """Raise unless every setting that is not None holds positive, finite numbers."""
    for name, value in settings.items():
        numbers = _numbers(value)
        if value is not None and not (numbers and all(0 < number < math.inf for number in numbers)):
            raise ValueError(f"{name} must be positive, got {value}")


def check_not_negative(**settings: Numbers | None) -> None:
    """Raise unless every setting that is not None holds finite numbers of 0 or more."""
    for name, value in settings.items():
        numbers = _numbers(value)
        if value is not None and not all(0 <= number < math.inf for number in numbers):
            raise ValueError(f"{name} must be 0 or more, got {value}")


def check_choices(settings: object) -> None:
    """Raise where a setting (a field of a dataclass) is a word that its type does not list."""
    for name, kind in get_type_hints(type(settings)).items():
        value, parts = getattr(settings, name), get_args(kind) or (kind,)
        if get_origin(kind) is Literal:
            parts = (kind,)
        words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
        if words and isinstance(value, str) and str not in parts and value not in words:
            raise ValueError(f"{name} must be {_listed(words, parts)}, got {value!r}")


def _listed(words: Sequence[object], parts: Sequence[object]) -> str:
    """Choices in words: true, false, mirrored or patches."""
    every = (["true", "false"] if bool in parts else []) + [str(word) for word in words]
    return f"{', '.join(every[:-1])} or {every[-1]}" if len(every) > 1 else every[0]


def _numbers(value: Numbers | None) -> Sequence[float | int]:
    return () if value is None else value if isinstance(value, Sequence) else (value,)


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
