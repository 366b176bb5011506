"""Weight 0: the row is not there. Weight 2: the row comes twice. In every number."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone

from gramian import ConvDKMClassifier, ConvDKMConfig, DenseDKMConfig, NormChoice, fit
from gramian.gram import random
from gramian.nn.contract import Trainable
from gramian.nn.steps import inputs
from gramian.nn.steps.inputs import DenseInput, PatchInput
from gramian.train import task
from gramian.train.data import DataError, Normaliser, RowScaler
from gramian.train.estimators import DKMClassifier, DKMRegressor, epochs
from gramian.train.fit import as_dataset
from gramian.train.predict.evaluate import as_numbers, evaluate
from gramian.train.record.run_folder import RunFolder

SEEDS = [0, 1]
TARGETS = {
    "categorical": lambda draw: draw.integers(0, 3, 30),
    "gaussian": lambda draw: draw.normal(5, 2, 30),
    "student_t": lambda draw: draw.normal(5, 2, (30, 2)),
    "poisson": lambda draw: draw.poisson(3, (30, 1)),
}
CLOSE = {"rtol": 1e-6, "atol": 1e-7}


def rows(seed=0, likelihood="gaussian", junk=False):
    """x, y, weights of 0 to 3, and the rows that they stand for."""
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(30, 2)), TARGETS[likelihood](draw)
    weights = np.arange(30) % 4
    if junk:  # a class of its own, and far away
        x[weights == 0], y[weights == 0] = 50, 7
    return x, y, weights.astype(float), np.repeat(np.arange(30), weights)


@pytest.fixture
def same_draws(monkeypatch):
    """What is drawn at random does not depend on the number of rows, and is the same for copies."""
    draw_samples = Trainable.draw_samples

    def shared(self, batch, generator):
        return draw_samples(self, 1, generator).expand(-1, batch, -1)

    def by_feature(data, fraction, generator):
        held = data.x.flatten(1)[:, 0] > (128 if data.images else 0.5)
        return data.subset((~held).nonzero()[:, 0]), data.subset(held.nonzero()[:, 0])

    def smallest(self, x, *_):
        return x.unique(dim=0)[: self.num_inducing]

    monkeypatch.setattr(Trainable, "draw_samples", shared)
    monkeypatch.setattr(epochs, "hold_out", by_feature)
    monkeypatch.setattr(task, "hold_out", by_feature)

    def some_patches(self, images, *_):
        f, different = self.patch_size, images.unique(dim=0)
        patches = different.unfold(2, f, 1).unfold(3, f, 1).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
        return patches[:: len(patches) // len(self.inducing_patches)][: len(self.inducing_patches)]

    monkeypatch.setattr(DenseInput, "choose_inducing", smallest)
    monkeypatch.setattr(PatchInput, "choose_inducing", some_patches)


def numbers(history):
    """What is reported, without times, and without the rounding errors that are counted."""
    left_out = ("seconds", "memory_mb", "clamped")
    return [{k: v for k, v in row.items() if k not in left_out} for row in history]


def assert_same_numbers(a, b):
    assert len(a) == len(b)
    for one, other in zip(numbers(a), numbers(b), strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(one[name], other[name], err_msg=name, **CLOSE)


# ---- estimators and fit ----


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "estimator",
    [
        DKMClassifier(early_stopping=True),
        DKMClassifier(calibrate="temperature", class_weight={0: 2.0}, early_stopping=True),
        DKMClassifier(class_weight="balanced"),
        DKMRegressor(early_stopping=True),
        DKMRegressor(likelihood="student_t", num_layers=0),
        DKMRegressor(likelihood="poisson"),
    ],
    ids=str,
)
def test_estimators(estimator, seed, same_draws):
    likelihood = getattr(estimator, "likelihood", "categorical")
    x, y, weights, twice = rows(seed, likelihood, junk=True)
    y = y[:, 0] if likelihood == "poisson" else y
    estimator.set_params(num_inducing=5, max_epochs=4, num_samples=8, random_state=0)
    a = clone(estimator).fit(x, y, sample_weight=weights)
    b = clone(estimator).fit(x[twice], y[twice])
    assert_same_predictions(a.predictor_, b.predictor_, x)
    assert_same_numbers(a.history_, b.history_)


IMAGE_ESTIMATORS = [
    ConvDKMClassifier(early_stopping=True),
    ConvDKMClassifier(calibrate="temperature", early_stopping=True),
    ConvDKMClassifier(class_weight="balanced"),
    ConvDKMClassifier(class_weight={0: 2.0}, optimiser="adam"),
]


def images():
    """x, y, weights of 0 to 3, and the images that they stand for. Those of weight 0 are junk."""
    draw = np.random.default_rng(0)
    x = draw.integers(1, 256, (32, 1, 6, 6)).astype(np.uint8)
    x[:, 0, 0, 0] = 8 * np.arange(32)  # those above its mean are held out
    y, weights = np.arange(32) % 3, np.arange(32) // 2 % 4
    x[weights == 0, 0, 1:], y[weights == 0] = 0, 7
    return x, y, weights.astype(float), np.repeat(np.arange(32), weights)


def fit_images(estimator, x, y, weights=None):
    settings = {"num_inducing": (6, 6), "max_epochs": 4, "num_samples": 8, "batch_size": 200}
    model = clone(estimator).set_params(
        **settings, random_state=0, precision="64-true", device="cpu"
    )
    return model.fit(x, y, sample_weight=weights)


@pytest.mark.parametrize("estimator", IMAGE_ESTIMATORS, ids=str)
def test_image_classifiers(estimator, same_draws):
    """All of weight 2: normalisations take plain means over images, whatever they weigh."""
    x, y, _, _ = images()
    a, b = fit_images(estimator, x, y, np.full(32, 2)), fit_images(estimator, *map(twice, (x, y)))
    assert_same_predictions(a.predictor_, b.predictor_, x)
    assert_same_numbers(a.history_, b.history_)


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_fit_of_images(likelihood, same_draws, tmp_path):
    """Normalised by the means of each image, which have no weights."""
    x, y, weights, twice = images()
    y = y if likelihood == "categorical" else np.sqrt(y)
    config = ConvDKMConfig(
        num_inducing=(6, 6), strides=(2, 2), norm=NormChoice(data="image"), likelihood=likelihood,
        num_samples=8,
    )  # fmt: skip
    without = np.minimum(weights, 1)
    histories, predictors = [], []
    for name, (a, b, w) in {
        "a": (x, y, weights), "b": (x[twice], y[twice], None), "c": (x, y, without)
    }.items():  # fmt: skip
        predictors.append(
            fit(
                config, a, b, sample_weight=w, folder=tmp_path / name, max_epochs=3,
                batch_size=200, validation_fraction=0.3, patience=2, precision="64-true",
                device="cpu",
            )
        )  # fmt: skip
        histories.append(numbers(RunFolder(tmp_path / name).read_metrics()))
    first, second, unweighted = (predictor.predictions(x) for predictor in predictors)
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], atol=2e-4, rtol=2e-4)
    assert max((first[name] - unweighted[name]).abs().max() for name in first) > 1e-3
    for one, other in zip(*histories[:2], strict=True):
        assert one == pytest.approx(other, abs=2e-4, rel=2e-4)


def twice(values):
    return values.repeat(2, 0)


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_first_portions(likelihood, same_draws):
    x, y, weights, twice = rows(0, likelihood, junk=True)
    classes = {"classes": range(3)} if likelihood == "categorical" else {}
    kind = DKMClassifier if classes else DKMRegressor
    a, b = (kind(num_inducing=5, num_samples=8, random_state=0) for _ in range(2))
    a.partial_fit(x, y, sample_weight=weights, **classes)
    b.partial_fit(x[twice], y[twice], **classes)
    assert_same_predictions(a.predictor_, b.predictor_, x)
    assert_same_numbers(a.history_, b.history_)
    assert a._stream.weight_seen == b._stream.weight_seen == weights.sum()


@pytest.mark.parametrize("natural", [False, True])
@pytest.mark.parametrize("likelihood", TARGETS)
def test_fit(likelihood, natural, same_draws, tmp_path):
    x, y, weights, twice = rows(1, likelihood, junk=True)
    calibrate = "temperature" if likelihood == "categorical" else "none"
    config = DenseDKMConfig(
        num_inducing=5, likelihood=likelihood, divergence="exact", num_samples=8
    )
    histories, predictors = [], []
    for name, (a, b, w) in {"a": (x, y, weights), "b": (x[twice], y[twice], None)}.items():
        predictor = fit(
            config, a, b, sample_weight=w, folder=tmp_path / name, max_epochs=3, batch_size=100,
            validation_fraction=0.3, patience=2, calibrate=calibrate, natural=natural,
            precision="64-true",
        )  # fmt: skip
        predictors.append(predictor)
        histories.append(RunFolder(tmp_path / name).read_metrics())
    assert_same_predictions(*predictors, x)
    assert_same_numbers(*histories)


def assert_same_predictions(a, b, x):
    for values, others in ((a.scaler.mean, b.scaler.mean), (a.scaler.std, b.scaler.std)):
        assert values == pytest.approx(others)
    first, second = a.predictions(x), b.predictions(x)
    for name in first:
        torch.testing.assert_close(first[name], second[name], **CLOSE)


# ---- parts ----


@pytest.mark.parametrize("likelihood", TARGETS)
def test_metrics(likelihood):
    """In batches, and with weights that are no whole numbers."""
    x, y, weights, twice = rows(2, likelihood)
    config = DenseDKMConfig(num_inducing=5, likelihood=likelihood, num_samples=8)
    predictor = fit(config, x, y, max_epochs=1, precision="64-true")
    all_data = as_dataset(x, y, predictor.model.likelihood.targets)
    weighted = replace(all_data, weights=torch.tensor(weights) / 2)
    a = as_numbers(evaluate(predictor, weighted, batch_size=7))
    b = as_numbers(evaluate(predictor, all_data.subset(torch.tensor(twice))))
    assert a.pop("num") == b.pop("num") / 2
    assert a == pytest.approx(b)


def test_calibration_of_a_predictor():
    x, y, weights, twice = rows(0, "categorical")
    config = DenseDKMConfig(num_inducing=5, num_samples=8)
    predictor = fit(config, x, y, max_epochs=1, precision="64-true")
    a = predictor.calibrate(x, y, "vector", sample_weight=weights).calibration
    b = predictor.calibrate(x[twice], y[twice], "vector").calibration
    assert a.scale == pytest.approx(b.scale, rel=1e-3)
    assert a.shift == pytest.approx(b.shift, abs=1e-3)
    with pytest.raises(DataError, match="weights must be"):
        predictor.calibrate(x, y, sample_weight=weights[:3])


def test_scaling_of_images():
    draw = np.random.default_rng(0)
    x = torch.tensor(draw.integers(0, 256, (6, 2, 4, 3)), dtype=torch.uint8)
    weights = torch.tensor([0.0, 1.0, 2.0, 3.0, 0.0, 1.0], dtype=torch.float64)
    twice = torch.arange(6).repeat_interleave(weights.long())
    for kind, images in ((Normaliser, x), (RowScaler, x.double())):
        a, b = kind.fit(images, weights), kind.fit(images[twice])
        assert a.mean == pytest.approx(b.mean)
        assert a.std == pytest.approx(b.std)


def test_a_row_of_weight_two_is_chosen_as_one_of_two_is():
    """The order of the first copies of each row, over many draws."""
    x, weights = torch.arange(3.0)[:, None], torch.tensor([1.0, 2.0, 3.0])
    twice = torch.tensor([0, 1, 1, 2, 2, 2])
    chooser = DenseInput(2, 1)
    shares = []
    for data, w in ((x, weights), (x[twice], None)):
        draw = torch.Generator().manual_seed(0)
        chosen = [chooser.choose_inducing(data, draw, None, w).flatten() for _ in range(2000)]
        pairs = torch.stack(chosen).long()
        shares.append(torch.bincount(3 * pairs[:, 0] + pairs[:, 1], minlength=9) / len(pairs))
    torch.testing.assert_close(*shares, atol=0.05, rtol=0)
    assert shares[0][5] == pytest.approx(1 / 3 * 3 / 4, abs=0.04)  # 1 and then 2


@pytest.mark.parametrize("train", ["fit", "DKMRegressor", "ConvDKMClassifier"])
def test_inducing_points_are_chosen_by_weights(train, monkeypatch):
    draw = np.random.default_rng(0)
    x, y, weights = draw.normal(size=(30, 2)), np.arange(30) % 2, 1.0 + np.arange(30)
    seen = []
    original = random.permutation

    def noted(size, generator, weights=None):
        seen.append(weights)
        return original(size, generator, weights)

    monkeypatch.setattr(inputs, "permutation", noted)
    small = {"max_epochs": 1, "num_inducing": 5}
    if train == "fit":
        fit(DenseDKMConfig(num_inducing=5), x, y, sample_weight=weights, max_epochs=1)
    elif train == "DKMRegressor":
        DKMRegressor(**small).fit(x, y, sample_weight=weights)
    else:
        pixels = draw.random((30, 1, 6, 6))
        model = ConvDKMClassifier(**small | {"num_inducing": (4, 4)}, device="cpu")
        model.fit(pixels, y, sample_weight=weights)
    np.testing.assert_array_equal(seen[0], weights)
