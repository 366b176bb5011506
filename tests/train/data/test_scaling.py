import json

import pytest
import torch

from gramian.train.data import (
    CIFAR_NORMALISER,
    DataError,
    Normaliser,
    RowScaler,
    scaler_from_dict,
)
from tests.samples import generator

IMAGES = torch.randint(0, 256, (20, 3, 4, 5), generator=generator()).to(torch.uint8)
ROWS = 5 + 3 * torch.randn(50, 4, generator=generator(1), dtype=torch.float64)


def test_normalised_images_have_mean_0_and_deviation_1():
    out = Normaliser.fit(IMAGES)(IMAGES, torch.float64)
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(out.std((0, 2, 3), correction=0), torch.ones(3).double())


def test_the_published_constants_are_applied_as_published():
    out = CIFAR_NORMALISER(IMAGES, torch.float64)
    expected = (IMAGES[3, 1, 2, 2].item() / 255 - 0.4822) / 0.1994
    assert out[3, 1, 2, 2].item() == pytest.approx(expected, abs=1e-14)
    assert CIFAR_NORMALISER(IMAGES, torch.float32).dtype == torch.float32


@pytest.mark.parametrize("level", [0, 77, 255])
def test_a_constant_channel_keeps_scale_1(level):
    images = IMAGES.clone()
    images[:, 1] = level
    normaliser = Normaliser.fit(images)
    assert normaliser.std[1] == 1
    assert normaliser(images, torch.float64)[:, 1].abs().max() < 1e-12


def test_scaled_rows_have_mean_0_and_deviation_1():
    out = RowScaler.fit(ROWS)(ROWS, torch.float64)
    torch.testing.assert_close(out.mean(0), torch.zeros(4).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(out.std(0, correction=0), torch.ones(4).double())
    assert RowScaler.fit(ROWS.float())(ROWS.float(), torch.float64).dtype == torch.float64


def test_a_constant_feature_keeps_scale_1_and_one_row_is_enough():
    rows = ROWS.clone()
    rows[:, 2] = 0.1  # whose computed deviation need not be exactly 0
    assert RowScaler.fit(rows).std[2] == 1
    assert RowScaler.fit(rows[:1]).std == (1.0,) * 4


@pytest.mark.parametrize("scaler", [Normaliser.fit(IMAGES), RowScaler.fit(ROWS), CIFAR_NORMALISER])
def test_scalers_survive_json(scaler):
    text = json.dumps(scaler.to_dict())
    assert scaler_from_dict(json.loads(text)) == scaler
    assert type(scaler).from_dict(json.loads(text)) == scaler


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "kind of a scaler must be one of .* got None"),
        ({"kind": "magic"}, "got 'magic'"),
        ({"kind": "normaliser", "mean": [0.0]}, "needs lists of numbers"),
        ({"kind": "normaliser", "mean": ["x"], "std": [1]}, "needs lists of numbers"),
        ({"kind": "row_scaler", "mean": [0], "std": [0]}, "positive std"),
        ({"kind": "row_scaler", "mean": [0], "std": [1, 1]}, "as many std as mean, got 2 and 1"),
        ({"kind": "row_scaler", "mean": [], "std": []}, "as many"),
        ({"kind": "normaliser", "mean": [float("nan")], "std": [1]}, "finite mean"),
    ],
)
def test_bad_descriptions_are_refused(values, message):
    with pytest.raises(DataError, match=message):
        scaler_from_dict(values)


def test_a_scaler_of_the_other_kind_or_size_is_refused():
    with pytest.raises(DataError, match="expected a scaler of kind 'row_scaler'"):
        RowScaler.from_dict(CIFAR_NORMALISER.to_dict())
    with pytest.raises(DataError, match="made for 3 channels, got 1"):
        CIFAR_NORMALISER(IMAGES[:, :1], torch.float32)
    with pytest.raises(DataError, match="made for 4 features, got 2"):
        RowScaler.fit(ROWS)(ROWS[:, :2], torch.float64)
