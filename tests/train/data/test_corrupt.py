"""Corrupted images: what each way does, that it grows with the strength and can be repeated."""

from itertools import pairwise

import pytest
import torch

from gramian.train.data import Dataset
from gramian.train.data.corrupt import CORRUPTIONS, Corruption, corrupted
from gramian.train.data.data_errors import DataError
from tests.samples import generator


def images(num=12, channels=3, side=16, seed=0):
    """Smooth ones, so that blur and shifts do not do the same as noise."""
    small = torch.rand(num, channels, 4, 4, generator=generator(seed))
    size = (side, side)
    return (torch.nn.functional.interpolate(small, size, mode="bilinear") * 255).byte()


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize(("channels", "side"), [(3, 32), (1, 28), (1, 8)])
def test_every_way_keeps_the_form_and_grows_with_the_strength(kind, channels, side):
    before = images(channels=channels, side=side)
    far = []
    for strength in range(1, 6):
        after = Corruption(kind, strength)(before)
        assert (after.shape, after.dtype) == (before.shape, torch.uint8)
        far.append((after.float() - before.float()).abs().mean().item())
    assert far[0] > 0
    assert all(b >= a for a, b in pairwise(far)), far
    assert far[4] > far[0]


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_the_same_every_time_and_input_untouched(kind):
    before = images()
    copy = before.clone()
    assert torch.equal(Corruption(kind, 3)(before), Corruption(kind, 3)(before))
    assert torch.equal(before, copy)
    random = kind in ("noise", "shift")
    other = Corruption(kind, 3, seed=1)(before)
    assert torch.equal(other, Corruption(kind, 3)(before)) != random


def test_noise_has_its_deviation():
    grey = torch.full((40, 1, 32, 32), 128, dtype=torch.uint8)
    after = Corruption("noise", 5)(grey).double() / 255
    assert after.std().item() == pytest.approx(0.2, rel=0.02)
    assert after.mean().item() == pytest.approx(128 / 255, abs=0.003)


def test_contrast_brightness_and_blur_by_their_formulas():
    before = images()
    x = before.double() / 255
    mean = x.mean((1, 2, 3), keepdim=True)
    expected = {"contrast": mean + 0.35 * (x - mean), "brightness": (x + 0.3).clamp(max=1)}
    for kind, value in expected.items():
        found = Corruption(kind, 3)(before).double() / 255
        assert (found - value).abs().max() < 1 / 255
    assert (
        Corruption("blur", 5)(before).double().mean((1, 2, 3)) / 255 - x.mean((1, 2, 3))
    ).abs().max() < 0.1
    point = torch.zeros(1, 1, 33, 33, dtype=torch.uint8)
    point[0, 0, 16, 16] = 255
    spread = Corruption("blur", 3)(point)[0, 0].double()
    sigma = 33 / 32
    ratio = spread[16, 17] / spread[16, 16]
    assert ratio.item() == pytest.approx(
        torch.exp(torch.tensor(-1 / (2 * sigma**2))).item(), abs=0.02
    )
    assert torch.equal(spread, spread.mT)


def test_a_shift_moves_by_its_distance():
    before = images(num=200, side=32)
    after = Corruption("shift", 2)(before)
    moves = set()
    for old, new in zip(before, after, strict=True):
        found = [
            (down, right)
            for down in range(-2, 3)
            for right in range(-2, 3)
            if torch.equal(new[:, 3:-3, 3:-3], old[:, 3 - down : 29 - down, 3 - right : 29 - right])
        ]
        assert found
        moves |= set(found)
    assert {(2, 0), (-2, 0), (0, 2), (0, -2), (1, 1)} <= moves
    assert {down**2 + right**2 for down, right in moves} <= {2, 4, 5}


def test_a_data_set_keeps_its_labels():
    data = Dataset(images(), torch.arange(12) % 2, ("a", "b"))
    spoilt = corrupted(data, Corruption.parse("jpeg:5"))
    assert torch.equal(spoilt.y, data.y)
    assert not torch.equal(spoilt.x, data.x)
    assert str(Corruption.parse("jpeg:5")) == "jpeg:5"


@pytest.mark.parametrize("words", ["fog:1", "blur", "blur:0", "blur:6", "blur:x", "", "blur:-1"])
def test_unknown_corruptions_are_refused(words):
    with pytest.raises(DataError, match="such as blur:3, got"):
        Corruption.parse(words)


def test_other_data_are_refused():
    with pytest.raises(DataError, match="for uint8 images"):
        Corruption("blur", 1)(torch.rand(2, 3))
    with pytest.raises(DataError, match="1 or 3 channels"):
        Corruption("jpeg", 1)(torch.zeros(1, 2, 8, 8, dtype=torch.uint8))
