"""A custom data set: one function in a file outside the package.

    gramian train --data custom_data.spirals        (in this folder)

In Python: import this module, then ``gramian.train.data.load("custom_data.spirals")``.

    python examples/custom_data.py        # a classifier of these points
"""

from __future__ import annotations

import torch

from gramian import Dataset, Splits


def spirals(seed: int = 0) -> Splits:
    """Two spirals in the plane: 200 points to train on, 100 to test on."""
    draw = torch.Generator().manual_seed(seed)

    def points(count: int) -> Dataset:
        y = torch.arange(count) % 2
        t = 1 + 8 * torch.rand(count, generator=draw, dtype=torch.float64)
        angle = t + torch.pi * y
        x = torch.stack([t * angle.cos(), t * angle.sin()], 1)
        noise = torch.randn(x.shape, generator=draw, dtype=torch.float64)
        return Dataset(x + 0.2 * noise, y, ("inner", "outer"))

    return Splits(points(200), points(100))


def main() -> None:
    """Train on them, and say how well it went."""
    from gramian import DKMClassifier

    splits = spirals()
    model = DKMClassifier(random_state=0).fit(splits.train.x.numpy(), splits.train.y.numpy())
    score = model.score(splits.test.x.numpy(), splits.test.y.numpy())
    print(f"spirals: {score:.1%} correct")


if __name__ == "__main__":
    main()
