"""The values that leave this package: data points with labels, in training and test splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gramian.nn.likelihoods import Targets
from gramian.train.data.data_errors import DataError

LARGEST = 1e150
"""Beyond it sums of squares overflow float64."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Data points and their targets: images, uint8 or floating point [N, C, H, W], or rows [N, D].

    Args:
        x: images or rows.
        y: class numbers, int64 [N], with names; real targets, floating point [N, T]; or counts,
            int64 [N, T].
        class_names: one name for each class; empty for a regression.
        weights: of the data points, float64 [N], 0 or more: a point of weight 2 counts as two
            points. None for 1.
        is_portion: whether more will come, so that these may all be of one class.

    Example:
        >>> import torch
        >>> from gramian import Dataset
        >>> data = Dataset(torch.zeros(3, 1, 8, 8), torch.tensor([0, 1, 1]), ("cat", "dog"))
        >>> len(data), data.targets, data.num_outputs, data.images
        (3, 'classes', 2, True)
    """

    x: Tensor
    y: Tensor
    class_names: tuple[str, ...] = ()
    weights: Tensor | None = None
    is_portion: bool = False

    def __post_init__(self) -> None:
        """Refuse data that no model could be trained or tested on."""
        check_points(self.x)
        if self.y.ndim == 0 or len(self.y) != len(self.x):
            raise DataError(
                f"each data point needs one label, but there are {len(self.x)} data points and "
                f"labels of shape {tuple(self.y.shape)}"
            )
        if self.targets == "classes":
            _check_labels(self.y, self.class_names, self.is_portion)
        else:
            _check_targets(self.y)
        if self.weights is not None:
            check_weights(self.weights, len(self.x))

    def __len__(self) -> int:
        return len(self.x)

    @property
    def targets(self) -> Targets:
        """What the targets are: classes have names, counts are integers."""
        if self.class_names:
            return "classes"
        return "real" if self.y.is_floating_point() else "counts"

    @property
    def num_outputs(self) -> int:
        """How many functions a model of them has: one for each class or target."""
        return len(self.class_names) or self.y.shape[1]

    @property
    def total_weight(self) -> int | float:
        """How many data points there are, counted by their weights."""
        return len(self) if self.weights is None else float(self.weights.sum())

    def weights_at(
        self, indices: Tensor, dtype: torch.dtype, device: torch.device
    ) -> Tensor | None:
        """The weights of some data points, divided by the mean over all."""
        if self.weights is None:
            return None
        return (self.weights[indices] / self.weights.mean()).to(dtype).to(device)

    @property
    def images(self) -> bool:
        """Whether the data points are images."""
        return self.x.ndim == 4

    def subset(self, indices: Tensor | Sequence[int]) -> Dataset:
        """The data points at ``indices``, copied, in that order; the same class names."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        weights = None if self.weights is None else self.weights[index]
        return replace(self, x=self.x[index], y=self.y[index], weights=weights)


@dataclass(frozen=True, slots=True)
class Splits:
    """What to train on, and what to test on and never to choose by.

    Args:
        train: data points, images [N, C, H, W] or rows [N, D], and their targets.
        test: others, of the same shape, type and classes.

    Example:
        >>> import torch
        >>> from gramian import Dataset, Splits
        >>> x, y = torch.zeros(10, 4), torch.ones(10, 1)
        >>> splits = Splits(train=Dataset(x[:8], y[:8]), test=Dataset(x[8:], y[8:]))
        >>> len(splits.train), len(splits.test), splits.train.targets
        (8, 2, 'real')
    """

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
        if train.targets != test.targets:
            raise DataError(
                f"training targets are {train.targets}, but test targets are {test.targets}"
            )


def hold_out(data: Dataset, fraction: float, generator: torch.Generator) -> tuple[Dataset, Dataset]:
    """(the rest, a random ``fraction``), with the same share of each class in both.

    Each class keeps at least one data point on both sides. Both parts keep the order of ``data``.
    """
    if not 0 < fraction < 1:
        raise DataError(f"the fraction to hold out must lie between 0 and 1, got {fraction}")
    held = torch.zeros(len(data), dtype=torch.bool)
    classes = (
        data.y.cpu() if data.targets == "classes" else torch.zeros(len(data), dtype=torch.int64)
    )
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
    """Images or rows, finite, at least one."""
    real = x.dtype in (torch.float32, torch.float64)
    if not (x.ndim == 4 and (real or x.dtype == torch.uint8)) and not (x.ndim == 2 and real):
        raise DataError(
            "data must be uint8, float32 or float64 images [N, C, H, W], or float32 or float64 "
            f"rows [N, D], got {str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"
        )
    if x.numel() == 0:
        raise DataError(f"the data set is empty: data points of shape {tuple(x.shape)}")
    if real:
        _check_finite(x.flatten(1), "image" if x.ndim == 4 else "row")


def _check_labels(y: Tensor, class_names: tuple[str, ...], is_portion: bool) -> None:
    """Class numbers, each with a name, of two classes or more unless others will come."""
    if len(set(class_names)) < len(class_names):
        twice = next(name for name in class_names if class_names.count(name) > 1)
        raise DataError(f"class names must differ, but {twice!r} comes twice")
    for name in class_names:
        if not _is_text(name):
            raise DataError(
                f"the class name {name!r} is no Unicode text: it holds half of a character"
            )
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
    if low == high and not is_portion:
        raise DataError(
            f"all {len(y)} data points are of class {class_names[low]!r}: "
            "at least two classes must be present"
        )


def _is_text(name: str) -> bool:
    """Whether a string can be written down: a half of a surrogate pair cannot."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _check_targets(y: Tensor) -> None:
    """Finite real targets [N, T], or counts."""
    if y.ndim != 2 or y.dtype not in (torch.float32, torch.float64, torch.int64) or not y.shape[1]:
        raise DataError(
            "targets (labels without class names) must be float32 or float64, or int64 for counts, "
            f"of shape [N, T], got {str(y.dtype).removeprefix('torch.')} of shape {tuple(y.shape)}"
        )
    _check_finite(y, "target")
    if not y.is_floating_point() and y.min() < 0:
        raise DataError(
            f"counts (integers of shape [N, T]) must be 0 or more, got {int(y.min())}: save "
            "floating-point numbers for real targets"
        )


def check_weights(weights: Tensor, num_data: int) -> None:
    """One finite number for each data point, 0 or more, and not all 0."""
    if weights.dtype != torch.float64 or weights.shape != (num_data,):
        raise DataError(
            f"weights must be float64 of shape ({num_data},), got "
            f"{str(weights.dtype).removeprefix('torch.')} of shape {tuple(weights.shape)}"
        )
    if not (weights.isfinite().all() and weights.min() >= 0 and weights.sum() > 0):
        raise DataError("weights must be finite, 0 or more, and not all 0")


def _check_finite(values: Tensor, what: str) -> None:
    """Neither NaN nor infinity, nor beyond ``LARGEST``; the message names the first place."""
    bad = ~values.isfinite()
    if bad.any():
        row, column = bad.nonzero()[0].tolist()
        raise DataError(
            f"{int(bad.any(1).sum())} of {len(values)} {what}s contain NaN or infinity, the first "
            f"is {what} {row}, column {column}: remove these or fill them in"
        )
    large = torch.maximum(values.amax(0), -values.amin(0)) > LARGEST
    if large.any():
        column = int(large.nonzero()[0])
        row = int(values[:, column].abs().argmax())
        raise DataError(
            f"{what} {row}, column {column} is {values[row, column].item():.3g}, and the squares "
            f"of numbers beyond {LARGEST:g} are too large for float64: take another unit"
        )
