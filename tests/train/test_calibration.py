"""Temperature and vector scaling: the best on held-out data, in files, exports and estimators."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError
from scipy.optimize import minimize, minimize_scalar
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError

from gramian import (
    Categorical,
    ConvDKMClassifier,
    DenseDKMConfig,
    DKMClassifier,
    Marginals,
    NetworkConfig,
    Predictor,
    fit,
)
from gramian.metrics import classification_scores
from gramian.nn.likelihoods import draw_noise
from gramian.train.config import ConfigError, TrainConfig
from gramian.train.predict.export import export, load
from gramian.train.predict.logit_scaling import LogitScaling, fit_scaling
from gramian.train.predict.predictor import CONFIG
from gramian.train.pretrained import PretrainedError
from tests.samples import generator
from tests.train.tiny import config, trainer


def overconfident(num=400, classes=3, factor=4.0, seed=0):
    """Logits whose labels were drawn from a softmax of a quarter of them."""
    draw = generator(seed)
    logits = torch.randn(num, classes, generator=draw, dtype=torch.float64)
    y = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    return Marginals(factor * logits, torch.zeros(num, 1, dtype=torch.float64)), y


SAMPLES = draw_noise(20, (1, 3), generator(7), torch.float64)
LIKELIHOOD = Categorical(3, 20)


def loss(q, y, scale, shift=0.0):
    scale, shift = torch.as_tensor(scale), torch.as_tensor(shift)
    scaled = Marginals(scale * q.mean + shift, (scale**2) * q.var)
    return -LIKELIHOOD.log_marginal(scaled, y, SAMPLES).mean().item()


@pytest.mark.parametrize("var", [0.0, 0.5])
def test_the_temperature_is_the_best_one(var):
    q, y = overconfident()
    q = Marginals(q.mean, torch.full_like(q.var, var))
    found = fit_scaling(LIKELIHOOD, q, y, SAMPLES, "temperature")
    best = minimize_scalar(lambda t: loss(q, y, 1 / t), bounds=(0.1, 50), method="bounded")
    assert found.temperature == pytest.approx(best.x, rel=1e-3)
    assert loss(q, y, found.scale[0]) <= best.fun + 1e-9
    if not var:
        assert found.temperature == pytest.approx(4, rel=0.15)


def test_a_vector_is_at_least_as_good_and_the_best_one():
    q, y = overconfident()
    q = Marginals(q.mean + torch.tensor([0.0, 2.0, -1.0]), q.var)
    one = fit_scaling(LIKELIHOOD, q, y, SAMPLES, "temperature")
    found = fit_scaling(LIKELIHOOD, q, y, SAMPLES, "vector")
    assert found.temperature is None
    mine = loss(q, y, found.scale, found.shift)
    assert mine < loss(q, y, one.scale[0]) - 0.01
    best = minimize(lambda v: loss(q, y, np.exp(v[:3]), v[3:]), np.zeros(6), method="BFGS")
    assert mine == pytest.approx(best.fun, abs=1e-5)


def test_the_variance_is_scaled_by_the_square():
    q = Marginals(torch.ones(2, 3), torch.tensor([[0.5], [2.0]]))
    scaled = LogitScaling((2.0, 1.0, 3.0), (0.0, 1.0, 0.0))(q)
    assert torch.equal(scaled.mean, torch.tensor([[2.0, 2.0, 3.0]] * 2))
    assert torch.equal(scaled.var, torch.tensor([[2.0, 0.5, 4.5], [8.0, 2.0, 18.0]]))


@pytest.fixture(scope="module")
def table():
    X, y = make_classification(
        400, 6, n_informative=4, n_classes=3, flip_y=0.2, random_state=0, class_sep=0.7
    )
    return X[:120], y[:120], X[120:260], y[120:260], X[260:], y[260:]


@pytest.fixture(scope="module")
def predictor(table):
    config = DenseDKMConfig(num_inducing=30, num_samples=20, divergence="exact", tempered=False)
    settings = {"natural": True, "max_epochs": 40, "batch_size": 120, "device": "cpu"}
    return fit(config, *table[:2], **settings)


def test_a_calibrated_predictor_suits_the_held_out_data(predictor, table):
    _, _, X, y, X_test, _ = table
    before = classification_scores(predictor.predictions(X)["probabilities"], y)
    for kind in ("temperature", "vector"):
        after = predictor.calibrate(X, y, kind)
        scores = classification_scores(after.predictions(X)["probabilities"], y)
        assert scores["log_likelihood"] > before["log_likelihood"]
        assert after.calibrate(X, y, kind).calibration == after.calibration  # from the plain logits
    warm = predictor.calibrate(X, y)
    plain, scaled = (p.predictions(X_test) for p in (predictor, warm))
    T = warm.calibration.temperature
    torch.testing.assert_close(scaled["latent_mean"], plain["latent_mean"] / T)
    torch.testing.assert_close(scaled["latent_variance"], plain["latent_variance"] / T**2)
    same = scaled["latent_mean"].argmax(1) == plain["latent_mean"].argmax(1)
    assert same.all()


@pytest.mark.parametrize("kind", ["temperature", "vector"])
def test_it_is_saved_and_exported(predictor, table, tmp_path, kind):
    _, _, X, y, X_test, _ = table
    calibrated = predictor.calibrate(X, y, kind)
    calibrated.save_pretrained(tmp_path / "model")
    again = Predictor.from_pretrained(tmp_path / "model")
    assert again.calibration == calibrated.calibration
    expected = calibrated.predictions(X_test)["probabilities"]
    assert torch.equal(again.predictions(X_test)["probabilities"], expected)
    for format in ("pt2", "onnx"):
        path = tmp_path / f"model.{format}"
        export(calibrated, path, format)
        found = load(path, format)(torch.tensor(X_test))["probabilities"]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"scale": [0.0], "shift": [0.0]}, "scale of a calibration must be positive"),
        ({"scale": [1.0, 1.0], "shift": [0.0]}, "1 or 3 numbers, got 2 and 1"),
        ({"scale": [float("nan")], "shift": [0.0]}, "must be finite numbers"),
        ({"scale": ["1"], "shift": [0.0]}, "cannot be read: .*scale"),
        ({"scale": [], "shift": [0.0]}, "must be finite numbers"),
        ({"shift": [0.0]}, "no field 'scale'"),
        ([1.0], "cannot be read"),
    ],
)
def test_a_damaged_calibration_is_refused(predictor, tmp_path, saved, message):
    predictor.save_pretrained(tmp_path)
    path = tmp_path / CONFIG
    values = json.loads(path.read_text())
    del values["digest"]
    path.write_text(json.dumps({**values, "calibration": saved}))
    with pytest.raises(PretrainedError, match=message):
        Predictor.from_pretrained(tmp_path)


def test_training_ends_with_a_calibration():
    settings = config(validation_fraction=0.5, calibrate="temperature")
    run = trainer(settings, validation=True)
    run.fit()
    assert run.predictor.calibration is not None
    held_out = run.task.validation
    plain = replace(run.predictor, calibration=None)
    assert plain.calibrate(held_out.x, held_out.y) == run.predictor
    measured = run.measure()["validation"].compute()["log_likelihood"]
    scores = classification_scores(run.predictor.probabilities(held_out.x), held_out.y)
    assert scores["log_likelihood"] == pytest.approx(float(measured), rel=1e-5)


def test_a_network_can_be_calibrated(table):
    images = torch.randint(0, 255, (40, 1, 8, 8), generator=generator(), dtype=torch.uint8)
    y = np.arange(40) % 2
    config = NetworkConfig(widths=(4,), strides=(2,), blocks_per_stage=1)
    found = fit(config, images, y, max_epochs=2, validation_fraction=0.5, calibrate="vector")
    assert len(found.calibration.scale) == 2
    assert fit(found, images, y, max_epochs=1).calibration is None  # other weights, other logits


def test_estimators_calibrate_on_rows_that_they_hold_out(table, tmp_path):
    X, y, X_test = table[0], np.array(["a", "b", "c"])[table[1]], table[4]
    model = DKMClassifier(calibrate="temperature", max_epochs=5, random_state=0).fit(X, y)
    assert model.predictor_.calibration.temperature is not None
    model.save_pretrained(tmp_path)
    again = DKMClassifier.from_pretrained(tmp_path)
    assert np.array_equal(again.predict_proba(X_test), model.predict_proba(X_test))
    model.set_params(warm_start=True, calibrate=None).fit(X, y)
    assert model.predictor_.calibration is None
    digits = np.random.default_rng(0).integers(0, 255, (30, 8, 8), dtype=np.uint8)
    images = ConvDKMClassifier(
        num_inducing=(4,), strides=(2,), max_epochs=1, calibrate="vector", random_state=0
    ).fit(digits, np.arange(30) % 3)
    assert len(images.predictor_.calibration.scale) == 3


def test_what_makes_no_sense_is_refused(predictor, table):
    X, y = table[2:4]
    with pytest.raises((ValueError, TypeCheckError), match=r"temperature.*vector"):
        predictor.calibrate(X, y, "platt")
    with pytest.raises(ValueError, match="labels"):
        predictor.calibrate(X, y[:-1])
    with pytest.raises(ConfigError, match="needs a validation set"):
        TrainConfig(calibrate="temperature")
    rows = np.linspace(-1, 1, 20)[:, None]
    with pytest.raises(ConfigError, match="calibrate is for classes"):
        fit(DenseDKMConfig(num_inducing=4), rows, rows, calibrate="vector", validation_fraction=0.2)
    regression = fit(DenseDKMConfig(num_inducing=4), rows, rows, max_epochs=1)
    with pytest.raises(PretrainedError, match="for classifiers"):
        regression.calibrate(rows, rows)
    with pytest.raises(ValueError, match="calibrate must be one of"):
        DKMClassifier(calibrate="platt").fit(*table[:2])
    with pytest.raises(NotFittedError):
        DKMClassifier(calibrate="vector").predict(X)
