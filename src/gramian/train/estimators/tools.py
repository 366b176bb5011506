"""Small functions of the estimators: arrays to tensors, scales of targets, checks of arguments."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor

from gramian.train.data import RowScaler

Array = NDArray[Any]
F = TypeVar("F", bound=Callable[..., None])
TargetScale = tuple[tuple[float, ...], tuple[float, ...]]
UNSCALED: TargetScale = ((0.0,), (1.0,))


def no_type_check(init: F) -> F:
    """Let a constructor take anything: scikit-learn wants ``fit`` to complain, not ``__init__``.

    The tests' type checker goes by this decorator's name; a static one still sees the types.
    """
    return typing.no_type_check(init)


def tensor(array: Array, dtype: torch.dtype) -> Tensor:
    """A copy of an array as a tensor: read-only and strided arrays, too."""
    return torch.tensor(np.ascontiguousarray(array), dtype=dtype)


def draw_seed(random_state: int | np.random.RandomState | None) -> int:
    """One number that everything random in a fit comes from."""
    return int(check_random_state(random_state).randint(2**31 - 1))


def fit_row_scaler(x: Tensor, standardize: bool) -> RowScaler:
    """Scaling of each feature to mean 0 and deviation 1, or none."""
    if standardize:
        return RowScaler.fit(x)
    return RowScaler((0.0,) * x.shape[1], (1.0,) * x.shape[1])


def in_original_units(scale: TargetScale, mean: Tensor, var: Tensor) -> tuple[Array, Array]:
    """Mean and variance of standardised targets, turned back."""
    shift, std = (mean.new_tensor(values) for values in scale)
    return (mean * std + shift).cpu().numpy(), (var * std.square()).cpu().numpy()


def fit_target_scale(y: Array) -> TargetScale:
    """Mean and standard deviation of each target; 1 for a constant one.

    Both are float32 numbers, so that no later rounding can separate training and prediction.
    """
    mean, std = y.mean(0).astype(np.float32), y.std(0).astype(np.float32)
    std[~(std > 1e-7 * np.abs(mean)) | (std == 0)] = 1
    return tuple(map(float, mean)), tuple(map(float, std))


def check_count(name: str, value: Any, allow_auto: bool = True) -> None:
    """Raise unless ``value`` is a positive integer (or "auto")."""
    if isinstance(value, str) and value == "auto" and allow_auto:
        return
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        choice = "a positive integer or 'auto'" if allow_auto else "a positive integer"
        raise ValueError(f"{name} must be {choice}, got {value!r}")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")


def epochs_for(steps: int, num_data: int, batch_size: int, at_least: int) -> int:
    """Epochs that make about so many steps."""
    return max(at_least, math.ceil(steps / math.ceil(num_data / batch_size)))
