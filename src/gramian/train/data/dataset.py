"""The values that leave this package: data points with labels, in training and test splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gramian.train.data.errors import DataError


@dataclass(frozen=True, slots=True)
class Dataset:
    """Data points and their labels: images as uint8 [N, C, H, W], rows as floating point [N, D].

    Args:
        x: images or rows.
        y: class numbers, int64 [N]; or regression targets, floating point [N, T].
        class_names: one name for each class; empty for regression.
    """

    x: Tensor
    y: Tensor
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse data that no model could be trained or tested on."""
        check_points(self.x)
        if self.y.ndim == 0 or len(self.y) != len(self.x):
            raise DataError(
                f"each data point needs one label, but there are {len(self.x)} data points and "
                f"labels of shape {tuple(self.y.shape)}"
            )
        if self.class_names:
            _check_labels(self.y, self.class_names)
        else:
            _check_targets(self.y)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def images(self) -> bool:
        """Whether the data points are images."""
        return self.x.ndim == 4

    @property
    def targets(self) -> str:
        """What is to be predicted: ``classes`` or ``real`` numbers."""
        return "classes" if self.class_names else "real"

    def subset(self, indices: Tensor | Sequence[int]) -> Dataset:
        """The data points at ``indices``, copied, in that order; the same class names."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        return Dataset(self.x[index], self.y[index], self.class_names)


@dataclass(frozen=True, slots=True)
class Splits:
    """What to train on, and what to test on and never to choose by."""

    train: Dataset
    test: Dataset

    def __post_init__(self) -> None:
        """Refuse halves that do not belong together."""
        train, test = self.train, self.test
        if train.x.shape[1:] != test.x.shape[1:] or train.x.dtype != test.x.dtype:
            raise DataError(
                "training and test data points must be alike, got "
                f"{_kind(train.x)} for training and {_kind(test.x)} for testing"
            )
        if train.class_names != test.class_names or train.y.shape[1:] != test.y.shape[1:]:
            raise DataError("training and test labels must have the same classes or targets")


def hold_out(data: Dataset, fraction: float, generator: torch.Generator) -> tuple[Dataset, Dataset]:
    """(the rest, a random ``fraction``), with the same share of each class in both.

    Each class keeps at least one data point on both sides. Both parts keep the order of ``data``.
    """
    if not 0 < fraction < 1:
        raise DataError(f"the fraction to hold out must lie between 0 and 1, got {fraction}")
    held = torch.zeros(len(data), dtype=torch.bool)
    classes = data.y.cpu() if data.class_names else torch.zeros(len(data), dtype=torch.int64)
    for number in classes.unique().tolist():
        members = (classes == number).nonzero().flatten()
        if len(members) < 2:
            name = f"class {data.class_names[number]!r}" if data.class_names else "the data set"
            raise DataError(f"{name} has one data point: at least two are needed to hold one out")
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        order = torch.randperm(len(members), generator=generator, device=generator.device)
        held[members[order.cpu()[:count]]] = True
    return data.subset((~held).nonzero().flatten()), data.subset(held.nonzero().flatten())


def split_off_test(data: Dataset, fraction: float = 0.2) -> Splits:
    """Splits of data that came without a test set: stratified, and the same every time."""
    train, test = hold_out(data, fraction, torch.Generator().manual_seed(0))
    return Splits(train, test)


def _kind(x: Tensor) -> str:
    """Shape of one data point and dtype, for messages."""
    dtype = str(x.dtype).removeprefix("torch.")
    return f"{dtype} {'×'.join(map(str, x.shape[1:]))}"


def check_points(x: Tensor) -> None:
    """Images of uint8 or finite rows, at least one."""
    images = x.ndim == 4 and x.dtype == torch.uint8
    rows = x.ndim == 2 and x.dtype in (torch.float32, torch.float64)
    if not images and not rows:
        raise DataError(
            "data must be uint8 images [N, C, H, W] or float32 or float64 rows [N, D], got "
            f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"
        )
    if x.numel() == 0:
        raise DataError(f"the data set is empty: data points of shape {tuple(x.shape)}")
    if rows:
        _check_finite(x, "row")


def _check_labels(y: Tensor, class_names: tuple[str, ...]) -> None:
    """Class numbers, each with a name, of two classes or more."""
    if len(set(class_names)) < len(class_names):
        twice = next(name for name in class_names if class_names.count(name) > 1)
        raise DataError(f"class names must differ, but {twice!r} comes twice")
    if y.dtype != torch.int64 or y.ndim != 1:
        raise DataError(
            "class numbers must be int64 of shape [N], got "
            f"{str(y.dtype).removeprefix('torch.')} of shape {tuple(y.shape)}"
        )
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= len(class_names):
        raise DataError(
            f"class numbers must lie in 0..{len(class_names) - 1}, as there are "
            f"{len(class_names)} class names, got {low}..{high}"
        )
    if low == high:
        raise DataError(
            f"all {len(y)} data points are of class {class_names[low]!r}: "
            "at least two classes must be present"
        )


def _check_targets(y: Tensor) -> None:
    """Finite regression targets [N, T]."""
    if y.ndim != 2 or y.dtype not in (torch.float32, torch.float64) or y.shape[1] == 0:
        raise DataError(
            "regression targets (labels without class names) must be float32 or float64 of shape "
            f"[N, T], got {str(y.dtype).removeprefix('torch.')} of shape {tuple(y.shape)}"
        )
    _check_finite(y, "target")


def _check_finite(values: Tensor, what: str) -> None:
    """Neither NaN nor infinity; the message names the first place."""
    bad = ~values.isfinite()
    if bad.any():
        row, column = bad.nonzero()[0].tolist()
        raise DataError(
            f"{int(bad.any(1).sum())} of {len(values)} {what}s contain NaN or infinity, the first "
            f"is {what} {row}, column {column}: remove these or fill them in"
        )
