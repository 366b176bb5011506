import pytest
import torch

from gramian.train.optimise import lr_factor
from gramian.train.runtime.seeds import generator

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
    assert values[0] == 1
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.001


def test_one_cycle_rises_and_falls():
    values = factors("one_cycle", 20)
    peak = values.index(max(values))
    assert values[peak] == pytest.approx(1, abs=0.04)
    assert 0.25 < peak / len(values) < 0.35
    assert values[:peak] == sorted(values[:peak])
    assert values[peak:] == sorted(values[peak:], reverse=True)


def test_constant():
    assert set(factors("constant", 3)) == {1.0}


def test_generators_depend_on_seed_purpose_and_place_and_on_nothing_else():
    def draw(*key):
        return torch.randn(3, generator=generator(*key)).tolist()

    assert draw(0, "skr", 5) == draw(0, "skr", 5)
    others = [draw(1, "skr", 5), draw(0, "shuffle", 5), draw(0, "skr", 6), draw(0, "skr", 5, 1)]
    assert draw(0, "skr", 5) not in others
    assert len({tuple(values) for values in others}) == 4
