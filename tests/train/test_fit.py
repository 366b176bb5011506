"""The public way to train, on arrays of every kind."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from gramian import (
    DKM,
    ConvDKMConfig,
    DenseDKM,
    DenseDKMConfig,
    FullRankConfig,
    NetworkConfig,
    Predictor,
    fit,
)
from gramian.train.config import ConfigError, TrainConfig
from gramian.train.data import Augmentation, DataError, Dataset, RowScaler
from gramian.train.fit import as_dataset, check_model
from gramian.train.task import Task, fit_model_config, load_task, training_split, untrained
from tests.samples import generator

X = torch.randn(24, 2, generator=generator(0)).double()
LABELS = (X[:, 0] > 0).long()
REAL = 1000 + 50 * X[:, :1]
COUNTS = torch.poisson((1 + X).exp(), generator=generator(1)).long()
IMAGES = torch.randint(256, (12, 4, 5), generator=generator(2)).byte()
DENSE = DenseDKMConfig(num_inducing=6, num_samples=8)
CONV = ConvDKMConfig(
    num_inducing=(4,), strides=(2,), blocks_per_stage=1, num_samples=8, whitening=False
)
NETWORK = NetworkConfig(widths=(4,), strides=(2,), blocks_per_stage=1)
SHORT = {"max_epochs": 2, "batch_size": 8, "device": "cpu"}


@pytest.mark.parametrize(
    ("y", "likelihood", "names"),
    [
        (LABELS, "categorical", ("0", "1")),
        (np.array(["b", "a"] * 12), "categorical", ("a", "b")),
        (REAL, "gaussian", ()),
        (REAL[:, 0].tolist(), "gaussian", ()),
        (COUNTS, "poisson", ()),
    ],
)
def test_the_data_choose_the_likelihood(y, likelihood, names):
    predictor = fit(DENSE, X, y, **SHORT)
    assert (predictor.config.likelihood, predictor.class_names) == (likelihood, names)
    assert all(value.isfinite().all() for value in predictor.predictions(X).values())


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "poisson"])
def test_predictions_are_in_the_units_of_the_targets(likelihood):
    y = COUNTS[:, :1] if likelihood == "poisson" else REAL
    config = DenseDKMConfig(
        num_inducing=24, likelihood=likelihood, divergence="exact", output_start="kernel", nu=10.0
    )
    predictor = fit(
        config, X, y, natural=True, max_epochs=40, lr=0.05, precision="64-true", device="cpu"
    )
    found = predictor.predictions(X)
    assert np.corrcoef(found["mean"][:, 0], y[:, 0])[0, 1] > (
        0.7 if likelihood == "poisson" else 0.97
    )
    assert (found["variance"] > 0).all()


@pytest.mark.parametrize("config", [CONV, NETWORK])
@pytest.mark.parametrize(
    "images", [IMAGES, IMAGES[:, None] / 255, IMAGES[..., None].expand(-1, -1, -1, 3)]
)
def test_images_of_all_kinds(config, images):
    labels = np.arange(12) % 3
    predictor = fit(config, images, labels, **SHORT)
    raw = as_dataset(images, labels).x
    assert predictor.predictions(raw)["probabilities"].shape == (12, 3)


def test_integers_are_what_an_explicit_likelihood_says():
    assert as_dataset(X, LABELS).targets == "classes"
    assert as_dataset(X, LABELS, "counts").targets == "counts"
    assert as_dataset(X.int(), LABELS, "real").x.dtype == torch.float64


def test_a_model_and_a_copy_of_a_predictors_go_on_from_their_weights():
    model = DenseDKM.from_config(replace(DENSE, num_features=2))
    first = fit(model, X, LABELS, **SHORT)
    assert first.model is model
    before, said = copy.deepcopy(model.state_dict()), first.probabilities(X)
    second = fit(first, X, LABELS, **SHORT, precision="64-true")
    assert second.scaler == first.scaler
    assert 0 < (second.model.output.q_mean - model.output.q_mean).abs().max() < 1
    assert first.dtype == torch.float32
    assert torch.equal(first.probabilities(X), said)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with pytest.raises(ConfigError, match="the model knows the classes"):
        fit(first, X, LABELS + 1, **SHORT)


def test_a_model_made_of_parts(tmp_path):
    built = DenseDKM.from_config(replace(DENSE, num_features=2))
    parts = {name: getattr(built, name) for name in ("data_shape", "inputs", "kernel", "norm")}
    model = DKM(
        **parts,
        whitening=None,
        layers={},
        pooling=None,
        output=built.output,
        likelihood=built.likelihood,
    )
    with pytest.raises(ConfigError, match="made of parts has no settings to record"):
        fit(model, X, LABELS, folder=tmp_path / "run", **SHORT)
    assert not (tmp_path / "run").exists()
    predictor = fit(model, X, LABELS, **SHORT)
    assert predictor.config is None
    assert predictor.predictions(X)["probabilities"].shape == (24, 2)


def test_full_rank_settings_start_a_search():
    predictor = fit(FullRankConfig(), X, REAL, max_iter=20)
    assert isinstance(predictor, Predictor)
    error = predictor.predictions(X)["mean"] - REAL
    assert error.square().mean().sqrt() < 10
    with pytest.raises(ConfigError, match=r"does not suit classes: choose categorical"):
        fit(FullRankConfig(), X, LABELS)
    with pytest.raises(ConfigError, match="no sample_weight"):
        fit(FullRankConfig(), X, REAL, sample_weight=np.ones(24))


def test_a_folder_records_the_run(tmp_path):
    fit(DENSE, X, LABELS, folder=tmp_path / "run", **SHORT)
    loaded = Predictor.from_pretrained(tmp_path / "run" / "model")
    assert loaded.class_names == ("0", "1")
    assert (tmp_path / "run" / "result.json").exists()


def test_settings_are_those_of_a_run_and_a_wrong_one_is_named():
    with pytest.raises(TypeError, match="max_epoch"):
        fit(DENSE, X, LABELS, max_epoch=3)
    with pytest.raises(ConfigError, match="batch_size must be positive, got 0"):
        fit(DENSE, X, LABELS, batch_size=0)
    predictor = fit(DENSE, X, LABELS, validation_fraction=0.25, patience=1, **SHORT)
    assert predictor.predictions(X)["probabilities"].isfinite().all()


def test_data_that_do_not_fit_the_settings():
    with pytest.raises(ConfigError, match="poisson is for counts, but the data have classes"):
        fit_model_config(replace(DENSE, likelihood="poisson"), as_dataset(X, LABELS))
    with pytest.raises(ConfigError, match="categorical is for classes, but the data have real"):
        fit(replace(DENSE, likelihood="categorical"), X, REAL)
    with pytest.raises(DataError, match="poisson cannot have these: counts must be whole"):
        fit(replace(DENSE, likelihood="poisson"), X, REAL + 0.5)
    with pytest.raises(DataError, match=r"2×1 pixels are too small, .* 3×3 or more: enlarge"):
        fit(CONV, IMAGES[:, :1, :2], np.arange(12) % 2)
    with pytest.raises(DataError, match=r"takes data of shape \(3,\), got \(2,\)"):
        fit(DenseDKM.from_config(replace(DENSE, num_features=3)), X, LABELS)


def test_fewer_rows_than_inducing_points_use_as_many_and_it_is_said(caplog):
    data = Dataset(X[:5], REAL[:5])
    with caplog.at_level("INFO", logger="gramian"):
        config = fit_model_config(DENSE, data)
    assert config.num_inducing == 5
    assert "5 inducing points, as many as there are training rows" in caplog.text


def test_constant_targets_can_be_trained_on():
    predictor = fit(DENSE, X, torch.full((24, 1), 7.0), **SHORT)
    assert predictor.model.likelihood.shift.item() == 7
    assert predictor.predictions(X)["mean"].isfinite().all()


@pytest.mark.parametrize(
    ("y", "likelihood"),
    [(REAL.numpy(), "gaussian"), (COUNTS.numpy(), "poisson"), (LABELS.numpy(), "categorical")],
)
def test_an_npz_chooses_the_likelihood(tmp_path, y, likelihood):
    np.savez(tmp_path / "own.npz", x=X.numpy(), y=y)
    config = TrainConfig(kind="dense", data=str(tmp_path / "own.npz"), model=DENSE)
    task = load_task(config)
    predictor = untrained(config.model, task.train, task.scaler)
    assert predictor.config.likelihood == likelihood
    assert predictor.config.num_outputs == task.train.num_outputs


def test_predictions_take_what_fit_takes():
    images, labels = np.random.default_rng(0).random((12, 6, 6)), np.arange(12) % 2
    config = ConvDKMConfig(num_inducing=(4,), strides=(2,), blocks_per_stage=1, whitening=False)
    predictor = fit(config, images, labels, max_epochs=1)
    expected = predictor.predictions(torch.from_numpy(images)[:, None])["probabilities"]
    for x in (images, torch.from_numpy(images), images[..., None]):
        torch.testing.assert_close(predictor.predictions(x)["probabilities"], expected)
    whole = np.arange(20).reshape(10, 2)
    rows = fit(DenseDKMConfig(num_inducing=4), whole, whole[:, 0] / 3, max_epochs=1)
    assert rows.predictions(whole)["mean"].shape == (10, 1)


def test_every_setting_of_the_split_is_honoured_or_refused(tmp_path):
    seen = []
    for changes in ({}, {"seed": 5}, {"split_seed": 5}):
        settings = {"validation_fraction": 0.25, "train_size": 10, **SHORT, **changes}
        fit(DENSE, X, LABELS, folder=tmp_path / str(len(seen)), **settings)
        facts = json.loads((tmp_path / str(len(seen)) / "env.json").read_text())
        seen.append(facts["data"])
    assert seen[0] == seen[1] != seen[2]  # of ten points and six held out, by the split's own seed
    train, held_out = training_split(as_dataset(X, LABELS), TrainConfig(train_size=10))
    assert (len(train), held_out) == (10, None)
    with pytest.raises(ConfigError, match="crop_padding and flip are for images"):
        fit(DENSE, X, LABELS, flip=True, **SHORT)
    with pytest.raises(ConfigError, match="train_size must be between 2 and the 24"):
        fit(DENSE, X, LABELS, train_size=25, **SHORT)


def test_weights_are_part_of_what_a_result_depends_on():
    scaler, same = RowScaler.none(2), Augmentation(0, False)
    plain, one, two = (
        Task(as_dataset(X, LABELS, None, w), None, None, scaler, same).digest()
        for w in (None, torch.ones(24), torch.arange(24) + 1.0)
    )
    assert len({plain, one, two}) == 3


def test_integers_are_real_targets_where_a_likelihood_wants_them():
    config = DenseDKMConfig(likelihood="gaussian", num_inducing=6)
    predictor = fit(config, X, torch.arange(24) * 2, **SHORT)
    assert predictor.predictions(X)["mean"].shape == (24, 1)


def test_integers_in_a_column_are_what_the_likelihood_says():
    column = np.arange(24)[:, None] % 3
    assert fit(DenseDKMConfig(num_inducing=5), X, column, max_epochs=1).class_names == ()
    config = DenseDKMConfig(num_inducing=5, likelihood="categorical")
    assert fit(config, X, column, max_epochs=1).class_names == ("0", "1", "2")
    dirichlet = FullRankConfig(num_layers=0, likelihood="dirichlet", num_classes=3)
    assert fit(dirichlet, X, column, max_iter=1).class_names == ("0", "1", "2")
    full_rank = FullRankConfig(num_layers=0)
    a, b = (fit(full_rank, X, y, max_iter=2) for y in (column, column.astype(float)))
    torch.testing.assert_close(a.predictions(X)["mean"], b.predictions(X)["mean"])


def test_dates_are_no_numbers():
    dates = np.datetime64("2020-01-01") + np.arange(24)
    for likelihood in ("auto", "gaussian"):
        config = DenseDKMConfig(num_inducing=5, likelihood=likelihood)
        with pytest.raises(DataError, match="got datetime64"):
            fit(config, X, dates)
        with pytest.raises(DataError, match="got datetime64"):
            fit(config, dates[:, None], REAL)


def test_images_are_predicted_in_the_form_that_they_were_trained_in():
    images = IMAGES[:, None]
    labels = torch.arange(12) % 2
    predictor = fit(CONV, images, labels, **SHORT)
    with pytest.raises(DataError, match=r"trained on uint8 images, of 0 to 255, .* are float64"):
        predictor.predictions(images.double() / 255)
    full = fit(FullRankConfig(likelihood="dirichlet", num_classes=2), images, labels, max_iter=5)
    as_bytes, as_numbers = (full.predictions(x)["probabilities"] for x in (images, images.double()))
    torch.testing.assert_close(as_bytes, as_numbers)


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        (
            {"X": csr_matrix(X.numpy())},
            DataError,
            r"^X is sparse, of shape \[24, 2\]: give X.toarray",
        ),
        ({"y": csr_matrix(REAL.numpy())}, DataError, "^y is sparse"),
        ({"X": X.numpy() * [1, 1e200]}, DataError, r"^row \d+, column 1 is .*e\+200, and"),
        ({"y": REAL * -1e300}, DataError, r"^target \d+, column 0 is -.*e\+30\d.* another unit"),
        ({"epochs": 3}, TypeError, "^fit has no setting epochs; did you mean max_epochs\\?$"),
        ({"data": "digits"}, TypeError, "^fit has no setting data; did you mean data_dir"),
        (
            {"model": FullRankConfig(), "iter": 3},
            TypeError,
            "no setting iter; did you mean max_iter",
        ),
        ({"X": [[1.0, 2.0], [3.0]]}, DataError, "X must hold lists of equal lengths"),
        ({"y": [[1.0, 2.0], [3.0]]}, DataError, "y must hold lists of equal lengths"),
        ({"sample_weight": "balanced"}, DataError, "sample_weight must be .*, got 'balanced'"),
    ],
)
def test_what_cannot_be_fitted_is_named_in_one_line(changed, kind, message):
    with pytest.raises(kind, match=message) as caught:
        fit(**{"model": DENSE, "X": X, "y": REAL, "device": "cpu", **changed})
    assert "\n" not in str(caught.value)


def test_large_numbers_with_squares_can_be_learned():
    predictor = fit(DENSE, X * 1e149, REAL * 1e140, **SHORT, precision="64-true")
    assert predictor.predictions(X * 1e149)["mean"].isfinite().all()


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (torch.nn.Linear(2, 1), "an object of Linear"),
        (DenseDKMConfig, "the class DenseDKMConfig"),
        (None, "an object of NoneType"),
    ],
)
def test_what_is_no_model_is_named(model, named):
    with pytest.raises(ConfigError, match=rf"^model must be settings .*, got {named}"):
        check_model(model)
