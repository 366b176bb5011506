import math

import pytest
import torch

from gramian.train.optimise import best_of, build_optimiser, is_over, lr_factor
from gramian.train.runtime.seeds import generator
from tests.train.tiny import config

PUBLISHED = (2 / 3, 11 / 12)


def factors(schedule, epochs, steps_per_epoch=5, milestones=PUBLISHED):
    steps = range(epochs * steps_per_epoch)
    return [lr_factor(schedule, step, steps_per_epoch, epochs, milestones) for step in steps]


@pytest.mark.parametrize(
    ("epochs", "milestones", "drops"),
    [(1200, PUBLISHED, (800, 1100)), (200, (0.8, 0.9), (160, 180)), (12, PUBLISHED, (8, 11))],
)
def test_the_published_drops(epochs, milestones, drops):
    values = factors("steps", epochs, milestones=milestones)
    for epoch in range(epochs):
        expected = 0.1 ** sum(epoch >= drop for drop in drops)
        assert values[5 * epoch : 5 * epoch + 5] == pytest.approx([expected] * 5)


def test_cosine_falls_from_one_to_nearly_zero():
    values = factors("cosine", 20)
    assert [values[step] for step in (0, 25, 50, 75)] == pytest.approx(
        [1, 0.5 + 0.125**0.5, 0.5, 0.5 - 0.125**0.5]
    )
    assert values == sorted(values, reverse=True)
    assert 0 < values[-1] < 0.001


def test_one_cycle_rises_from_a_25th_and_falls_from_three_tenths_of_the_steps_on():
    values = factors("one_cycle", 20)
    assert [values[step] for step in (0, 15, 29, 30, 65)] == pytest.approx(
        [0.04, 0.52, 0.968, 1, 0.5]
    )
    assert values[:31] == sorted(values[:31])
    assert values[30:] == sorted(values[30:], reverse=True)
    assert 0 < values[-1] < 0.001


def test_constant():
    assert set(factors("constant", 3)) == {1.0}


def test_patience_counts_the_evaluations_after_the_best_one():
    """Epochs without an evaluation do not count; an equal value is not better."""
    model = torch.nn.Linear(1, 1)
    values = {1: -3.0, 3: -1.0, 5: -2.0, 7: -1.0, 9: -4.0}
    rows, best, over = [], None, {1: [], 2: [], 3: [], None: []}
    for epoch in range(1, 10):
        row = {"epoch": epoch}
        if epoch in values:
            row["validation_log_likelihood"] = values[epoch]
        model.weight.data.fill_(epoch)
        best = best_of(best, row, model)
        rows.append(row)
        for patience, epochs in over.items():
            if is_over(best, rows, patience):
                epochs.append(epoch)
    assert over == {1: [5, 6, 7, 8, 9], 2: [7, 8, 9], 3: [9], None: []}
    assert (best["epoch"], best["validation_log_likelihood"]) == (3, -1.0)
    assert best["model"]["weight"].item() == 3
    assert not is_over(None, rows, 1)


def test_a_model_without_a_likelihood_is_not_the_best():
    model, best, rows = torch.nn.Linear(1, 1), None, []
    for epoch, value in enumerate([math.nan, -2.0, math.nan, -3.0], start=1):
        rows.append({"epoch": epoch, "validation_log_likelihood": value})
        best = best_of(best, rows[-1], model)
        assert (best is None) == (epoch == 1)
    assert best["epoch"] == 2
    assert is_over(best, rows, 2)


def test_generators_depend_on_seed_purpose_and_place_and_on_nothing_else():
    def draw(*key):
        return torch.randn(3, generator=generator(*key)).tolist()

    assert draw(0, "skr", 5) == draw(0, "skr", 5)
    others = [draw(1, "skr", 5), draw(0, "shuffle", 5), draw(0, "skr", 6), draw(0, "skr", 5, 1)]
    assert draw(0, "skr", 5) not in others
    assert len({tuple(values) for values in others}) == 4


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "muon"])
def test_weight_decay_reaches_each_optimiser_that_has_it(name):
    decay = 0.0 if name == "adam" else 0.25
    optimiser = build_optimiser(torch.nn.Linear(2, 3), config(optimiser=name, weight_decay=decay))
    for group in optimiser.param_groups:  # Muon's is for its matrices
        expected = decay if name != "muon" or group["matrices"] else 0.0
        assert group["weight_decay"] == expected
