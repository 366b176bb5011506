"""A custom data set: a function that returns splits, in one file outside the package.

gramian train --data custom_data.moons          (in this folder)
gramian evaluate RUN --import custom_data

python examples/custom_data.py                  # trains on it and shows the metrics
"""

from __future__ import annotations

import torch
from sklearn.datasets import make_moons

from gramian.train.data import Dataset, Splits


def moons() -> Splits:
    """Two interleaved half circles: rows of two features, two classes."""

    def half(count: int, seed: int) -> Dataset:
        x, y = make_moons(count, noise=0.2, random_state=seed)
        return Dataset(torch.from_numpy(x), torch.from_numpy(y), ("upper", "lower"))

    return Splits(half(200, seed=0), half(100, seed=1))


def main() -> None:
    """Train with the settings that suit the data."""
    from gramian.experiments.cli.main import main as program

    program(["train", "--data", f"{__name__}.moons", "--plots", "false"])


if __name__ == "__main__":
    main()
