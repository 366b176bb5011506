import pytest

from gramian.train.runtime.engine import Engine
from gramian.train.step import add_step, epoch_row

STEPS = [
    {"objective": -2.0, "kl/output": 3.0, "correct": 8.0, "count": 16.0, "clamped": 1.0},
    {"objective": -1.0, "kl/output": 1.0, "correct": 3.0, "count": 4.0, "clamped": 2.0},
]


def test_the_figures_of_an_epoch_by_hand():
    """Means over the steps, but the accuracy over the data, whatever the size of the last batch."""
    sums = {}
    for numbers, seconds in zip(STEPS, (0.5, 0.25), strict=True):
        sums = add_step(sums, numbers, seconds, Engine("cpu"))
    row = {"objective": -1.5, "kl/output": 2.0, "seconds": 0.75, "clamped": 3.0}
    assert epoch_row(sums, is_classifier=True) == pytest.approx(row | {"train_accuracy": 11 / 20})
    assert epoch_row(sums, is_classifier=False) == pytest.approx(row)
