"""A predictor's files, and what is refused when they are read."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gramian import ConvDKMConfig, DenseDKMConfig, FullRankConfig, NumericalError, Predictor, fit
from gramian.train.predict.predictor import CONFIG, WEIGHTS
from gramian.train.pretrained import PretrainedError
from tests.samples import generator

ROWS = torch.randn(12, 3, generator=generator(0)).double().numpy()
LABELS = np.arange(12) % 2
SMALL = DenseDKMConfig(num_inducing=4, num_samples=5)


@pytest.fixture
def saved(tmp_path):
    fit(SMALL, ROWS, LABELS, max_epochs=1, device="cpu").save_pretrained(tmp_path)
    return tmp_path


def change(folder, **changes) -> None:
    """Edit a description, as a user may: without its digest."""
    path = folder / CONFIG
    values = json.loads(path.read_text())
    del values["digest"]
    for name, value in changes.items():
        place = values["model"] if name in values["model"] else values
        if value is None:
            del place[name]
        else:
            place[name] = value
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_names": ["a"]}, "class_names must be 2 different names for this model, got 1"),
        ({"class_names": ["a", "a"]}, "class_names must be 2 different names"),
        ({"class_names": "ab"}, "class_names must be a list of strings, got 'ab'"),
        ({"class_names": None}, "config.json has no field 'class_names'"),
        ({"seed": "0"}, "seed must be an integer, got '0'"),
        ({"num_samples": 0}, "num_samples must be positive, got 0"),
        ({"dtype": "float16"}, "dtype must be one of float32, float64, got 'float16'"),
        ({"dtype": "nn"}, "dtype must be one of float32, float64, got 'nn'"),
        ({"likelihood": "gaussian"}, r"likelihood.shift.*likelihood.scale"),
        ({"num_outputs": 3}, r"output.q_mean"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_by_its_field(saved, changes, message):
    change(saved, **changes)
    with pytest.raises(PretrainedError, match=message):
        Predictor.from_pretrained(saved)


def test_all_that_is_wrong_with_the_weights_is_said(saved):
    weights = load_file(saved / WEIGHTS)
    weights["strange"] = weights.pop("output.q_mean")
    save_file(weights, saved / WEIGHTS)
    change(saved)
    with pytest.raises(PretrainedError, match=r"lacks output.q_mean and has strange"):
        Predictor.from_pretrained(saved)


def test_weights_that_are_not_numbers_are_refused(saved):
    weights = load_file(saved / WEIGHTS)
    weights["output.q_mean"][0] = torch.nan
    save_file(weights, saved / WEIGHTS)
    change(saved)
    with pytest.raises(PretrainedError, match=r"weights output.q_mean contain NaN or infinity"):
        Predictor.from_pretrained(saved)


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_one_flipped_bit_is_noticed(saved, name):
    content = bytearray((saved / name).read_bytes())
    content[-30] ^= 1
    (saved / name).write_bytes(content)
    with pytest.raises(PretrainedError, match=r"is not as it was saved.*take the field digest"):
        Predictor.from_pretrained(saved)


def test_a_model_of_an_old_version_has_no_digest(saved):
    change(saved)
    Predictor.from_pretrained(saved)


def test_a_prediction_that_is_not_a_number_is_an_error(saved):
    predictor = Predictor.from_pretrained(saved)
    predictor.dkm.output.q_mean.data[0] = torch.nan
    with pytest.raises(NumericalError, match="the prediction is NaN or infinite"):
        predictor.predictions(ROWS)


def test_predictions_need_one_pass_and_agree_with_the_single_ones(saved, monkeypatch):
    predictor = Predictor.from_pretrained(saved)
    frozen = []
    freeze = type(predictor.dkm).freeze
    monkeypatch.setattr(type(predictor.dkm), "freeze", lambda m: frozen.append(1) or freeze(m))
    found = predictor.predictions(ROWS, batch_size=5)
    assert len(frozen) == 1
    assert list(found) == ["probabilities", "latent_mean", "latent_variance"]
    x = torch.tensor(ROWS)
    assert torch.equal(found["probabilities"], predictor.probabilities(x, 5))
    assert torch.equal(found["latent_mean"], predictor.latent(x, 5).mean)


@pytest.mark.parametrize(
    ("config", "y"),
    [
        (SMALL, LABELS),
        (DenseDKMConfig(num_inducing=4, likelihood="student_t"), ROWS[:, :2] + 2000),
        (DenseDKMConfig(num_inducing=4, likelihood="poisson"), LABELS),
        (FullRankConfig(), ROWS[:, 0]),
        (FullRankConfig(likelihood="categorical", num_samples=5), LABELS),
    ],
)
def test_saved_and_loaded_predictions_are_bit_equal(tmp_path, config, y):
    steps = {"max_iter": 2} if isinstance(config, FullRankConfig) else {"max_epochs": 1}
    predictor = fit(config, ROWS, y, **steps, device="cpu")
    predictor.save_pretrained(tmp_path)
    loaded = Predictor.from_pretrained(tmp_path)
    assert loaded.config == predictor.config
    for name, value in predictor.predictions(ROWS).items():
        assert torch.equal(loaded.predictions(ROWS)[name], value)


def test_a_model_made_of_parts_cannot_be_saved(saved, tmp_path):
    whole = Predictor.from_pretrained(saved)
    parts = Predictor(whole.model, None, whole.scaler, whole.class_names)
    with pytest.raises(PretrainedError, match=r"keep model.state_dict"):
        parts.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_conv_configs_have_regressions_too():
    images = torch.rand(10, 1, 6, 6, generator=generator(1))
    config = ConvDKMConfig(num_inducing=(6,), strides=(2,), blocks_per_stage=1, whitening=False)
    found = fit(config, images, images.mean((1, 2, 3)), max_epochs=1, device="cpu")
    assert found.config.likelihood == "gaussian"
    assert found.predictions(images)["mean"].shape == (10, 1)


REAL = DenseDKMConfig(num_inducing=6, likelihood="gaussian")


def test_what_was_saved_in_a_run_folder_is_what_is_loaded(tmp_path):
    first, second = (
        fit(
            DenseDKMConfig(num_inducing=6, likelihood="gaussian"),
            ROWS,
            ROWS[:, :1],
            max_epochs=1,
            seed=seed,
        )
        for seed in (1, 2)
    )
    first.save_pretrained(tmp_path / "model")
    assert Predictor.from_pretrained(tmp_path).seed == 1
    second.save_pretrained(tmp_path)
    assert Predictor.from_pretrained(tmp_path).seed == 2


def test_data_of_any_form_and_type_are_predicted():
    x = torch.tensor(ROWS + 1000.3)
    predictor = fit(
        DenseDKMConfig(num_inducing=6, likelihood="gaussian"), x, ROWS[:, :1], max_epochs=1
    )
    expected = predictor.predictions(x)["mean"]
    for form in (x.tolist(), x.numpy(), x.clone().requires_grad_(), x.mT.contiguous().mT):
        torch.testing.assert_close(predictor.predictions(form)["mean"], expected)
    half = predictor.predictions(x.half())["mean"]
    torch.testing.assert_close(half, predictor.predictions(x.half().double())["mean"],
                               rtol=1e-3, atol=1e-3)  # fmt: skip
