import math

import pytest
import torch

from gramian.train.data import DataError, Dataset, Splits, hold_out
from gramian.train.data.dataset import split_off_test
from tests.samples import generator

IMAGES = torch.zeros(4, 3, 5, 5, dtype=torch.uint8)
ROWS = torch.arange(8.0).reshape(4, 2)
LABELS = torch.tensor([0, 1, 0, 1])
NAMES = ("cat", "dog")


def numbered(counts: list[int]) -> Dataset:
    """Rows that hold their own number, classes in blocks."""
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    x = torch.arange(len(y), dtype=torch.float64)[:, None]
    return Dataset(x, y, tuple(f"class {number}" for number in range(len(counts))))


def test_images_rows_and_targets_are_accepted():
    assert len(Dataset(IMAGES, LABELS, NAMES)) == 4
    assert Dataset(IMAGES, LABELS, NAMES).images
    assert not Dataset(ROWS, LABELS, NAMES).images
    assert Dataset(IMAGES / 255, LABELS, NAMES).images
    assert len(Dataset(ROWS, torch.zeros(4, 1))) == 4


def test_data_say_what_they_are():
    kinds = {
        "classes": Dataset(ROWS, LABELS, NAMES),
        "real": Dataset(ROWS, torch.zeros(4, 3)),
        "counts": Dataset(ROWS, torch.zeros(4, 3, dtype=torch.int64)),
    }
    assert {kind: data.targets for kind, data in kinds.items()} == {kind: kind for kind in kinds}
    assert [data.num_outputs for data in kinds.values()] == [2, 3, 3]


def test_weights_have_mean_one_in_training_and_follow_a_subset():
    data = Dataset(ROWS, LABELS, NAMES, torch.tensor([1.0, 2.0, 0.0, 5.0]).double())
    assert data.total_weight == 8
    both = torch.tensor([1, 3])
    assert data.weights_at(both, torch.float32, torch.device("cpu")).tolist() == [1, 2.5]
    assert data.subset([1, 0]).weights.tolist() == [2, 1]
    for bad in ([1.0, 1.0, 1.0], [0.0] * 4, [1.0, -1.0, 1.0, 1.0], [1.0, math.nan, 1.0, 1.0]):
        with pytest.raises(DataError, match="weights must be"):
            Dataset(ROWS, LABELS, NAMES, torch.tensor(bad).double())


@pytest.mark.parametrize(
    ("x", "y", "names", "message"),
    [
        (IMAGES.int(), LABELS, NAMES, r"uint8, .* images .* got int32 of shape \(4, 3, 5, 5\)"),
        (IMAGES / 0.0, LABELS, NAMES, "4 of 4 images contain NaN"),
        (ROWS.long(), LABELS, NAMES, "got int64"),
        (ROWS.half(), LABELS, NAMES, "got float16"),
        (torch.tensor(1.0), LABELS, NAMES, r"of shape \(\)"),
        (IMAGES[:0], LABELS[:0], NAMES, "empty"),
        (ROWS[:, :0], LABELS, NAMES, "empty"),
        (ROWS, LABELS[:3], NAMES, r"4 data points and labels of shape \(3,\)"),
        (ROWS, torch.tensor(1), NAMES, r"labels of shape \(\)"),
        (ROWS, LABELS.int(), NAMES, "must be int64 .* got int32"),
        (ROWS, LABELS[:, None], NAMES, r"got int64 of shape \(4, 1\)"),
        (ROWS, LABELS + 1, NAMES, r"0\.\.1.* got 1\.\.2"),
        (ROWS, LABELS - 1, NAMES, r"got -1\.\.0"),
        (ROWS, LABELS * 0, NAMES, "all 4 data points are of class 'cat'"),
        (ROWS, LABELS, ("cat", "cat"), "'cat' comes twice"),
        (ROWS / 0, LABELS, NAMES, "4 of 4 rows .* the first is row 0, column 0"),
        (ROWS, torch.zeros(4), (), r"shape \[N, T\], got float32 of shape \(4,\)"),
        (ROWS, LABELS[:, None].int(), (), "got int32"),
        (ROWS, LABELS[:, None] - 1, (), "counts .* must be 0 or more, got -1"),
        (ROWS, ROWS / 0, (), "4 of 4 targets"),
    ],
)
def test_useless_data_are_refused(x, y, names, message):
    with pytest.raises(DataError, match=message):
        Dataset(x, y, names)


def test_subset_takes_tensors_and_lists_and_keeps_the_order():
    data = numbered([3, 3])
    assert data.subset([4, 0]).x.flatten().tolist() == [4, 0]
    assert data.subset(torch.tensor([4, 0])).y.tolist() == [1, 0]


def test_splits_must_belong_together():
    train = Dataset(ROWS, LABELS, NAMES)
    with pytest.raises(DataError, match="float32 2 for training and float32 1 for testing"):
        Splits(train, Dataset(ROWS[:, :1], LABELS, NAMES))
    with pytest.raises(DataError, match="same classes"):
        Splits(train, Dataset(ROWS, LABELS, ("cat", "fox")))


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5, 0.9])
def test_hold_out_is_a_stratified_partition(fraction):
    counts = [40, 80, 200]
    rest, held = hold_out(numbered(counts), fraction, generator())
    assert held.y.bincount().tolist() == [round(fraction * count) for count in counts]
    both = torch.cat([rest.x, held.x]).flatten().sort().values
    assert torch.equal(both, torch.arange(320.0, dtype=torch.float64))
    assert torch.equal(rest.x.flatten().sort().values, rest.x.flatten())


def test_hold_out_depends_on_the_generator_only():
    data = numbered([20, 20])
    one, two, three = (hold_out(data, 0.5, generator(seed))[1].x for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    state = torch.get_rng_state()
    hold_out(data, 0.5, generator())
    assert torch.equal(state, torch.get_rng_state())


def test_hold_out_keeps_small_classes_on_both_sides():
    rest, held = hold_out(numbered([2, 100]), 0.01, generator())
    assert rest.y.bincount().tolist() == [1, 99]
    assert held.y.bincount().tolist() == [1, 1]


def test_hold_out_explains_what_it_cannot_do():
    with pytest.raises(DataError, match="class 'class 1' has one data point"):
        hold_out(numbered([5, 1]), 0.2, generator())
    for fraction in (0.0, 1.0, -0.5, float("nan")):
        with pytest.raises(DataError, match="between 0 and 1"):
            hold_out(numbered([5, 5]), fraction, generator())
    with pytest.raises(DataError, match="the data set has one"):
        hold_out(Dataset(ROWS[:1], ROWS[:1]), 0.5, generator())


def test_hold_out_of_regression_data():
    rest, held = hold_out(Dataset(ROWS, ROWS), 0.25, generator())
    assert (len(rest), len(held)) == (3, 1)


def test_the_default_split_is_fixed():
    one, two = split_off_test(numbered([10, 10])), split_off_test(numbered([10, 10]))
    assert torch.equal(one.test.x, two.test.x)
    assert len(one.test) == 4
