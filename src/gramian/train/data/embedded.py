"""Data sets that need no download: handwritten digits and the paper's sine toy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gramian.train.data.dataset import Dataset, Splits


def digits() -> Splits:
    """8×8 handwritten digits of scikit-learn: 1,347 to train on and 450 to test on, stratified."""
    from sklearn.datasets import load_digits  # slow to import
    from sklearn.model_selection import train_test_split

    source = load_digits()
    pixels = np.round(source.images * 255 / 16).astype(np.uint8)  # stored as 0..16
    x = torch.from_numpy(pixels)[:, None]
    y = torch.from_numpy(source.target.astype(np.int64))
    train, test = train_test_split(
        np.arange(len(y)), test_size=450, random_state=0, stratify=source.target
    )
    data = Dataset(x, y, tuple(str(digit) for digit in range(10)))
    return Splits(data.subset(train.tolist()), data.subset(test.tolist()))


def sine(seed: int = 0) -> Splits:
    """Two noisy sine waves, one above the other: 356 points to train on, 178 to test on.

        x₁ = linspace(−2, 2) + 0.1 ε,   x₂ = 6 sin(3 x₁) + 5·class + ε'

    Shuffled, then standardised by the training mean and unbiased deviation. The paper takes the
    first 100 training rows as inducing points. The draws come in the order of the paper's code.
    """
    generator = torch.Generator().manual_seed(seed)
    x, y = _waves(178, generator)
    x_test, y_test = _waves(89, generator)
    mean, std = x.mean(0), x.std(0)
    names = ("lower wave", "upper wave")
    train = Dataset((x - mean) / std, y, names)
    return Splits(train, Dataset((x_test - mean) / std, y_test, names))


def _waves(per_class: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Shuffled points [2·per_class, 2] and their classes."""

    def normal() -> Tensor:
        return torch.randn(per_class, generator=generator, dtype=torch.float64)

    line = torch.linspace(-2, 2, per_class, dtype=torch.float64)
    lower, upper = line + 0.1 * normal(), line + 0.1 * normal()
    across = torch.cat([lower, upper])
    heights = [6 * torch.sin(3 * lower) + normal(), 6 * torch.sin(3 * upper) + normal() + 5]
    y = torch.arange(2).repeat_interleave(per_class)
    order = torch.randperm(2 * per_class, generator=generator)
    return torch.stack([across, torch.cat(heights)], 1)[order], y[order]


@dataclass(frozen=True, slots=True)
class Embedded:
    """A data set that is part of the library: one line about it, and the function that makes it."""

    description: str
    shape: tuple[int, ...]  # of one data point
    classes: int
    load: Callable[[], Splits]


EMBEDDED = {
    "digits": Embedded(
        "1,797 handwritten digits of 8×8 grey pixels, from scikit-learn", (1, 8, 8), 10, digits
    ),
    "sine": Embedded("the paper's toy: two noisy sine waves in the plane", (2,), 2, sine),
}
