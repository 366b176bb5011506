"""The scikit-learn estimators: scikit-learn's own checks, and what those do not ask."""

import copy
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, make_blobs, make_moons
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.estimator_checks import parametrize_with_checks

from gramian import (
    SKR,
    Bandwidth,
    ConvDKMConfig,
    FullRankDKMRegressor,
    NNGPClassifier,
    NNGPRegressor,
    fit,
)
from gramian.nn.dense_dkm import DenseDKM, DenseDKMConfig
from gramian.nn.likelihoods import LIKELIHOODS
from gramian.train import defaults, natural
from gramian.train.data import Dataset, hold_out
from gramian.train.estimators import DKMClassifier, DKMRegressor, epochs
from gramian.train.estimators.epochs import weights_of_classes
from gramian.train.estimators.image_estimators import ConvDKMClassifier
from gramian.train.natural import natural_step_
from gramian.train.objective import objective
from gramian.train.pretrained import PretrainedError
from gramian.train.runtime.seeds import generator

FAST = {"num_inducing": 12, "max_epochs": 8, "num_samples": 32, "random_state": 0}
FAST_CONV = {
    "num_inducing": (8, 8),
    "max_epochs": 2,
    "num_samples": 16,
    "device": "cpu",
    "random_state": 0,
}


@pytest.fixture(scope="module")
def moons():
    return make_moons(80, noise=0.2, random_state=0)


@pytest.fixture(scope="module")
def classifier(moons):
    return DKMClassifier(**FAST).fit(*moons)


@pytest.fixture(scope="module")
def sine():
    draw = np.random.default_rng(0)
    x = draw.uniform(-3, 3, (200, 1))
    return x, 50 + 10 * np.sin(2 * x[:, 0]) + 2 * draw.standard_normal(200)


@pytest.fixture(scope="module")
def regressor(sine):
    return DKMRegressor(num_inducing=20, max_epochs=80, random_state=0).fit(
        sine[0][:100], sine[1][:100]
    )


@pytest.fixture(scope="module")
def images():
    """Stripes or noise."""
    draw = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = draw.integers(0, 100, (40, 1, 6, 6))
    x[y == 0, :, ::2] += 120
    return x.astype(np.uint8), np.array(["stripes", "noise"])[y]


# ---- scikit-learn's checks ----


def random_rows(_):
    """As of scikit-learn's own estimators that draw rows at random."""
    reason = "inducing points are drawn among the rows, whatever their weights and order"
    return {"check_sample_weight_equivalence_on_dense_data": reason}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [DKMClassifier(**FAST), DKMRegressor(**FAST | {"num_inducing": 30, "lr": 0.2})],
    expected_failed_checks=random_rows,
)
def test_scikit_learn_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataConversionWarning)
        check(estimator)


# The other checks make flat data of 1 to 10 features, which are no images.
IMAGE_CHECKS = [
    "check_estimator_cloneable",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
]


@pytest.mark.parametrize("name", IMAGE_CHECKS)
def test_scikit_learn_checks_of_images(name):
    getattr(estimator_checks, name)("ConvDKMClassifier", ConvDKMClassifier(**FAST_CONV))


# ---- classifier ----


def test_defaults_learn_iris():
    x, y = load_iris(return_X_y=True)
    model = DKMClassifier(random_state=0).fit(x[::2], y[::2])
    assert model.score(x[1::2], y[1::2]) > 0.92
    assert model.n_iter_ == 100
    assert len(model.history_) == 100
    assert model.history_[-1]["objective"] > model.history_[0]["objective"]


@pytest.mark.parametrize(
    "names", [np.array(["no", "yes"]), np.array([False, True]), np.array([7, -3])]
)
def test_labels_of_any_kind(moons, names):
    x, y = moons
    model = DKMClassifier(**FAST).fit(x, names[y])
    assert model.predict(x).dtype == names.dtype
    assert (model.classes_ == np.unique(names)).all()
    assert model.score(x, names[y]) > 0.85


def test_several_classes_in_a_pipeline():
    x, y = make_blobs(90, centers=4, random_state=0)
    model = make_pipeline(StandardScaler(), DKMClassifier(**FAST)).fit(x, y)
    assert model.predict_proba(x).shape == (90, 4)
    assert model.score(x, y) > 0.8


def test_probabilities_do_not_depend_on_the_batch(classifier, moons):
    p = classifier.predict_proba(moons[0])
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(classifier.predict_proba(moons[0][7:9]), p[7:9], atol=1e-12)
    np.testing.assert_allclose(classifier.predict_log_proba(moons[0]), np.log(p))
    mean, var = classifier.latent_mean_and_variance(moons[0])
    assert mean.shape == var.shape == (80, 2)
    assert (var > 0).all()


def test_same_seed_same_model(classifier, moons):
    again = clone(classifier).fit(*moons)
    assert (again.predict_proba(moons[0]) == classifier.predict_proba(moons[0])).all()
    other = clone(classifier).set_params(random_state=1).fit(*moons)
    assert (other.predict_proba(moons[0]) != classifier.predict_proba(moons[0])).any()


def test_pickle_keeps_every_bit(classifier, moons):
    copy = pickle.loads(pickle.dumps(classifier))
    assert (copy.predict_proba(moons[0]) == classifier.predict_proba(moons[0])).all()


def test_grid_search_in_two_processes(moons):
    search = GridSearchCV(DKMClassifier(**FAST), {"nu": [1, 100.0]}, cv=2, n_jobs=2)
    search.fit(*moons)
    assert search.best_score_ > 0.8
    assert not np.isnan(search.cv_results_["mean_test_score"]).any()


@pytest.mark.parametrize(
    "names", [np.array(["nein", "ja"]), np.array([3, 5]), np.array(["a", "b"], object)]
)
def test_files_keep_every_bit(moons, tmp_path, names):
    x, y = moons
    model = DKMClassifier(**FAST).fit(x, names[y])
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "estimator.json",
        "model.safetensors",
    }
    loaded = DKMClassifier.from_pretrained(tmp_path)
    assert (loaded.predict_proba(x) == model.predict_proba(x)).all()
    assert (loaded.predict(x) == model.predict(x)).all()
    assert loaded.classes_.dtype == model.classes_.dtype
    assert loaded.get_params() == model.get_params()
    assert loaded.history_ == model.history_
    with pytest.raises(PretrainedError, match="not a DKMRegressor"):
        DKMRegressor.from_pretrained(tmp_path)
    with pytest.raises(PretrainedError, match="no saved estimator"):
        DKMClassifier.from_pretrained(tmp_path / "elsewhere")
    (tmp_path / "estimator.json").write_text("{")
    with pytest.raises(PretrainedError, match="cannot be read"):
        DKMClassifier.from_pretrained(tmp_path)


def test_warm_start_goes_on(moons):
    x, y = moons
    model = DKMClassifier(**FAST | {"max_epochs": 8, "lr": 0.02}, warm_start=True).fit(x, y)
    first, module = model.history_[-1]["objective"], model.model_
    model.fit(x, y)
    assert model.n_iter_ == 16
    assert model.model_ is module
    assert model.history_[-1]["objective"] > first
    with pytest.raises(ValueError, match="not among the classes"):
        model.fit(x, y + 1)
    model.set_params(warm_start=False).fit(x, y)
    assert model.n_iter_ == 8


def test_early_stopping_keeps_the_best(moons):
    x, y = make_moons(60, noise=0.4, random_state=1)
    model = DKMClassifier(
        **FAST | {"max_epochs": 60, "nu": 0.01, "lr": 0.5},
        early_stopping=True,
        validation_fraction=0.3,
        n_iter_no_change=3,
    ).fit(x, y)
    values = [row["validation_log_likelihood"] for row in model.history_]
    assert model.n_iter_ < 60
    assert model.n_iter_ == np.argmax(values) + 1 + 3


def test_an_interrupted_portion_leaves_a_model_that_learns(moons, monkeypatch):
    x, y = moons

    def interrupted(*_):
        raise KeyboardInterrupt

    model = DKMClassifier(**FAST).partial_fit(x, y, classes=[0, 1])
    monkeypatch.setattr("gramian.train.estimators.epochs.check_finite", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(x, y)
    parameters = list(model.model_.parameters())
    assert all(p.requires_grad and p.grad is None for p in parameters)
    assert not model.model_.training


def test_partial_fit_learns_in_portions(moons):
    x, y = moons
    names = np.array(["a", "b"])[y]
    model = DKMClassifier(**FAST)
    with pytest.raises(ValueError, match="needs classes="):
        model.partial_fit(x, names)
    model.partial_fit(x[:40], names[:40], classes=["b", "a"])
    first = model.score(x, names)
    only_a = names == "a"
    model.partial_fit(x[only_a][:5], names[only_a][:5])
    for _ in range(15):
        model.partial_fit(x[:40], names[:40]).partial_fit(x[40:], names[40:])
    assert model.score(x, names) >= max(first, 0.9)
    assert model.n_iter_ == 32
    assert not model.model_.training
    copy = pickle.loads(pickle.dumps(model))
    assert (
        copy.partial_fit(x, names).predict_proba(x) == model.partial_fit(x, names).predict_proba(x)
    ).all()
    with pytest.raises(ValueError, match="not the same as before"):
        model.partial_fit(x, names, classes=["a", "c"])


def test_a_first_portion_may_be_of_one_class(moons):
    x, y = moons
    model = DKMClassifier(**FAST).partial_fit(x[y == 0][:30], y[y == 0][:30], classes=[0, 1])
    for _ in range(15):
        model.partial_fit(x, y)
    assert model.score(x, y) > 0.85


def test_portions_have_weights_and_lose_their_calibration(moons):
    x, y = moons
    plain, weighted = (DKMClassifier(**FAST, class_weight=w) for w in (None, {0: 1, 1: 50}))
    for model in (plain, weighted):
        model.partial_fit(x, y, classes=[0, 1]).partial_fit(x, y)
    assert (weighted.predict(x) == 1).mean() > (plain.predict(x) == 1).mean()
    by_hand = DKMClassifier(**FAST)
    for _ in range(2):
        by_hand.partial_fit(x, y, classes=[0, 1], sample_weight=np.where(y == 1, 50.0, 1.0))
    np.testing.assert_array_equal(by_hand.predict_proba(x), weighted.predict_proba(x))
    with pytest.raises(ValueError, match="needs all data at once"):
        DKMClassifier(**FAST, class_weight="balanced").partial_fit(x, y, classes=[0, 1])
    calibrated = DKMClassifier(**FAST, calibrate="temperature").fit(x, y)
    assert calibrated.predictor_.calibration is not None
    assert calibrated.partial_fit(x, y).predictor_.calibration is None


def test_weights_of_two_in_a_portion_are_like_rows_that_come_twice(moons):
    x, y = moons
    settings = {**FAST, "batch_size": 400, "num_inducing": 12}
    start = DKMClassifier(**settings).partial_fit(x, y, classes=[0, 1])
    twice, weighted = pickle.loads(pickle.dumps(start)), pickle.loads(pickle.dumps(start))
    twice.partial_fit(np.concatenate([x, x[:20]]), np.concatenate([y, y[:20]]))
    weighted.partial_fit(x, y, sample_weight=1.0 + (np.arange(len(x)) < 20))
    seen = weighted._stream.weight_seen
    assert seen == twice._stream.weight_seen == 2 * len(x) + 20
    np.testing.assert_allclose(weighted.predict_proba(x), twice.predict_proba(x), atol=0.02)


def test_the_best_model_by_validation_is_refined_too(moons):
    """q is at its optimum, where further steps of the natural gradient change nothing."""
    x, y = moons
    model = DKMRegressor(
        early_stopping=True, validation_fraction=0.3, n_iter_no_change=2, random_state=0,
        num_inducing=10, max_epochs=8, batch_size=16,
    ).fit(x, y.astype(float))  # fmt: skip
    dkm, scaler = model.predictor_.dkm, model.predictor_.scaler
    before = dkm.output.q_mean.detach().clone()
    held = generator(model.predictor_.seed, "validation split")
    data = Dataset(torch.tensor(x), torch.tensor(y, dtype=torch.float64)[:, None])
    train, _ = hold_out(data, 0.3, held)
    samples = dkm.draw_samples(1, torch.Generator().manual_seed(0))
    batch = (scaler(train.x, torch.float64), train.y, None)
    natural_step_(dkm, [batch], len(train), 1.0, samples)
    torch.testing.assert_close(dkm.output.q_mean, before, rtol=1e-6, atol=1e-6)


def test_mini_batches(moons):
    model = DKMClassifier(**FAST | {"batch_size": 32}).fit(*moons)
    assert model.score(*moons) > 0.85


def test_skr_and_float32(moons):
    model = DKMClassifier(**FAST, skr_gamma_fraction=1.0, skr_jitter=0.01, precision="32-true")
    assert model.fit(*moons).score(*moons) > 0.8


# ---- regressor ----


def test_intervals_are_calibrated(regressor, sine):
    x, y = sine[0][100:], sine[1][100:]
    mean, std = regressor.predict(x, return_std=True)
    assert mean.shape == std.shape == (100,)
    assert regressor.score(x, y) > 0.85
    assert 0.85 <= (np.abs(y - mean) < 1.96 * std).mean() <= 1
    assert 1 < std.mean() < 4
    latent, var = regressor.latent_mean_and_variance(x)
    np.testing.assert_allclose(latent, mean)
    assert (var < std**2).all()


def test_samples_have_the_predicted_moments(regressor, sine):
    x = sine[0][:5]
    mean, std = regressor.predict(x, return_std=True)
    samples = regressor.sample_y(x, n_samples=4000)
    assert samples.shape == (5, 4000)
    np.testing.assert_allclose(samples.mean(1), mean, atol=5 * std.max() / 4000**0.5)
    np.testing.assert_allclose(samples.std(1), std, rtol=0.1)


def test_several_targets(sine, tmp_path):
    x, y = sine
    both = np.stack([y, -3 * y + 1e6], 1)
    model = DKMRegressor(**FAST | {"max_epochs": 40}).fit(x, both)
    mean, std = model.predict(x, return_std=True)
    assert mean.shape == std.shape == (200, 2)
    assert model.score(x, both) > 0.8
    np.testing.assert_allclose(std[:, 1], 3 * std[:, 0], rtol=1e-4)
    assert model.sample_y(x, 3).shape == (200, 2, 3)
    model.save_pretrained(tmp_path)
    assert (DKMRegressor.from_pretrained(tmp_path).predict(x) == mean).all()


def test_regressor_in_portions_and_warm(sine):
    x, y = sine
    model = DKMRegressor(**FAST)
    for _ in range(20):
        for part in np.split(np.arange(200), 4):
            model.partial_fit(x[part], y[part])
    assert model.score(x, y) > 0.7
    model.set_params(warm_start=True).fit(x, y)
    assert model.n_iter_ == 80 + FAST["max_epochs"]
    with pytest.raises(ValueError, match="2 targets"):
        model.fit(x, np.stack([y, y], 1))


# ---- images ----


def test_images_of_any_form(images):
    x, y = images
    model = ConvDKMClassifier(
        **FAST_CONV | {"max_epochs": 15, "batch_size": 10, "lr": 0.05, "skr_gamma_fraction": None}
    ).fit(x, y)
    assert model.score(x, y) > 0.8
    assert model.n_features_in_ == 36
    p = model.predict_proba(x)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(model.predict_proba(x[3:4]), p[3:4], atol=1e-5)
    assert (model.predict_proba(x[:, 0]) == p).all()
    assert (model.predict_proba(x.astype(float)) == p).all()
    short = clone(model).set_params(max_epochs=1).fit(x, y)
    flat = clone(short).set_params(image_shape=(1, 6, 6)).fit(x.reshape(40, 36), y)
    assert (flat.predict_proba(x) == short.predict_proba(x)).all()
    unit = clone(model).fit(x / 255, y)
    assert unit.score(x / 255, y) > 0.8
    with pytest.raises(ValueError, match="these are uint8"):
        unit.predict(x)
    with pytest.raises(ValueError, match="from 0 to 255, these are at most"):
        model.predict(x / 255)
    assert model.predict(np.zeros((1, 6, 6))).shape == (1,)  # black in any scale


def test_numbers_of_any_type_are_levels_between_smallest_and_largest(images):
    x, _ = images
    model = ConvDKMClassifier(**FAST_CONV)
    levels = {
        "float16": (x / 255).astype(np.float16),
        "int64": x.astype(np.int64) * 16,
        "int16": -x.astype(np.int16),
        "bool": x > 110,
    }
    for name, values in levels.items():
        raw = model._raw(values, reset=True)
        expected = (values.astype(float) - values.min()) / (float(values.max()) - values.min())
        found = raw.double().numpy() / 255
        np.testing.assert_allclose(found, expected, atol=0.5 / 255 + 1e-9, err_msg=name)
        assert model.pixel_range_ == (float(values.min()), float(values.max()))


def test_the_published_recipe_is_a_word_away(images):
    x, y = images
    fast = ConvDKMClassifier(**FAST_CONV).fit(x, y).predictor_.config
    paper = ConvDKMClassifier(**FAST_CONV, recipe="paper", optimiser="adam").fit(x, y)
    assert (fast.bandwidth, fast.output_bandwidth) == (Bandwidth(3.0, True), Bandwidth(1.0, True))
    assert (fast.unexplained, fast.inducing_start) == ("dropped", "clusters")
    beyond = ("bandwidth", "output_bandwidth", "unexplained", "residual_weights", "bias_var")
    for name in (*beyond, "inducing_start"):
        assert getattr(paper.predictor_.config, name) == getattr(ConvDKMConfig(), name)
    other = ConvDKMClassifier(**FAST_CONV, kernel="arc_cosine").fit(x, y).predictor_.config
    assert (other.bandwidth, other.unexplained) == (Bandwidth(), "dropped")
    assert fast.skr == SKR(0.25, 0.1, gamma_power=0.0)
    for name in ("recipe", "optimiser"):
        with pytest.raises(ValueError, match=f"{name} must be one of .*, got 'slow'"):
            ConvDKMClassifier(**FAST_CONV, **{name: "slow"}).fit(x, y)


def test_images_to_files_and_in_portions(images, tmp_path):
    x, y = images
    model = ConvDKMClassifier(**FAST_CONV, whitening=True, crop_padding=1, flip=True)
    model.partial_fit(x[:20], y[:20], classes=["stripes", "noise"]).partial_fit(x[20:], y[20:])
    model.save_pretrained(tmp_path)
    loaded = ConvDKMClassifier.from_pretrained(tmp_path)
    assert (loaded.predict_proba(x) == model.predict_proba(x)).all()
    assert loaded.get_params() == model.get_params()
    copy = pickle.loads(pickle.dumps(model))
    assert (copy.predict(x) == model.predict(x)).all()


def test_wrong_images(images):
    x, y = images
    model = ConvDKMClassifier(**FAST_CONV)
    with pytest.raises(NotFittedError):
        model.predict(x)
    with pytest.raises(ValueError, match="set image_shape"):
        model.fit(x.reshape(40, 36), y)
    with pytest.raises(ValueError, match="has 25 values"):
        ConvDKMClassifier(**FAST_CONV, image_shape=(1, 5, 5)).fit(x.reshape(40, 36), y)
    with pytest.raises(ValueError, match=r"look like \(H, W, C\).*transpose"):
        model.fit(x.transpose(0, 2, 3, 1), y)
    with pytest.raises(ValueError, match="X holds images"):
        ConvDKMClassifier(**FAST_CONV, image_shape=(1, 5, 5)).fit(x, y)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(x == x.max(), np.nan, x), y)
    with pytest.raises(ValueError, match=r"got \(40, 1, 1, 6, 6\)"):
        model.fit(x[:, None], y)
    model.fit(x, y)
    with pytest.raises(ValueError, match="as in training"):
        model.predict(x[..., :5])


@pytest.mark.parametrize("shape", [(12, 9, 3), (9, 12, 1), (5, 7, 4), (6, 6, 2)])
def test_channels_that_come_last_are_refused(images, shape):
    x = np.random.default_rng(0).random((12, *shape))
    y = images[1][:12]
    for kind in (ConvDKMClassifier, NNGPClassifier):
        with pytest.raises(ValueError, match=r"look like \(H, W, C\).*transpose"):
            kind().fit(x, y)
    meant = ConvDKMClassifier(image_shape=shape)
    assert meant._raw(x, reset=True).shape == x.shape
    for right in ((3, 12, 9), (12, 4, 4), (12, 3, 9), (1, 9, 12), (3, 9, 3)):
        assert NNGPClassifier()._raw(np.zeros((2, *right)), reset=True).shape[1:] == right


# ---- errors ----


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_inducing": 0}, "num_inducing must be a positive integer or 'auto'"),
        ({"num_layers": 1.5}, "num_layers must be an integer or 'auto', got 1.5"),
        ({"num_layers": -1}, "num_layers must be an integer, 0 or more, or 'auto', got -1"),
        ({"max_epochs": "many"}, "max_epochs"),
        ({"kernel": "none"}, "unknown kernel"),
        ({"nu": -1}, "nu must be"),
        ({"early_stopping": True, "validation_fraction": 0.0}, "hold out"),
    ],
)
def test_wrong_arguments(moons, changes, message):
    with pytest.raises(ValueError, match=message):
        DKMClassifier(**FAST | changes).fit(*moons)


DATES = np.datetime64("2020-01-01") + np.arange(80).astype("timedelta64[D]")


@pytest.mark.parametrize("dates", [DATES, DATES - DATES[0], np.array([*DATES, None])[:80]])
def test_dates_are_no_numbers(classifier, moons, images, dates):
    x, y = moons
    columns = np.stack([dates, dates], 1)
    small = columns[:, None, None, :1].repeat(6, 2).repeat(6, 3)
    for call in (
        lambda: DKMClassifier(**FAST).fit(columns, y),
        lambda: classifier.predict(columns),
        lambda: DKMRegressor(**FAST).fit(x, dates),
        lambda: DKMClassifier(**FAST).fit(x, dates),
        lambda: DKMRegressor(**FAST).partial_fit(columns, x),
        lambda: NNGPRegressor().fit(columns, x),
        lambda: ConvDKMClassifier(**FAST_CONV).fit(small, y),
    ):
        with pytest.raises(ValueError, match="dates or durations"):
            call()


@pytest.mark.parametrize("labels", [["\ud800", "b"], np.array(["a", "b\udfff"], dtype=object)])
def test_labels_are_text_that_can_be_written(moons, labels):
    x, y = moons
    for call in (
        lambda names: DKMClassifier(**FAST).fit(x, names),
        lambda names: DKMClassifier(**FAST).partial_fit(x, names, classes=labels),
        lambda names: NNGPClassifier().fit(x, names),
        lambda names: fit(DenseDKMConfig(), x, names.astype(str)),
    ):
        with pytest.raises(ValueError, match="no Unicode text"):
            call(np.asarray(labels)[y])


def test_wrong_data(classifier, moons):
    x, y = moons
    with pytest.raises(ValueError, match="at least 2 classes"):
        DKMClassifier(**FAST).fit(x, np.zeros(80))
    for bad in (np.nan, np.inf):
        wrong = x.copy()
        wrong[3, 1] = bad
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            DKMClassifier(**FAST).fit(wrong, y)
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            classifier.predict(wrong)
    with pytest.raises(ValueError, match="features"):
        classifier.predict(x[:, :1])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        DKMClassifier(**FAST).fit(x, y[:-1])
    with pytest.raises(NotFittedError):
        DKMRegressor().predict(x)
    with pytest.raises(AttributeError, match="not fitted"):
        _ = DKMRegressor().model_


# ---- natural gradients ----


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_natural_gradient_finds_the_optimum(likelihood):
    draw = torch.Generator().manual_seed(0)
    config = DenseDKMConfig(
        num_features=2,
        num_inducing=6,
        likelihood=likelihood,
        divergence="exact",
        num_samples=2000,
        output_start="kernel",
        nu=1.0,
    )
    model = DenseDKM.from_config(config).double()
    x = torch.randn(30, 2, generator=draw, dtype=torch.float64)
    y = torch.stack([x[:, 0], x.prod(1)], 1)
    if likelihood in ("categorical", "poisson"):
        y = y.argmax(1) if likelihood == "categorical" else y.exp().round()
    model.initialise_(x, draw)
    model.eval()
    half = model.draw_samples(1, draw)
    samples = torch.cat([half, -half])
    batches = [(x[:20], y[:20], None), (x[20:], y[20:], None)]
    steps, rho = (1, 1.0) if model.likelihood.full_step else (40, 0.5)
    assert sum(natural_step_(model, batches, 30, rho, half) for _ in range(steps)) == 0
    terms = objective(model(x), model.likelihood, y, samples, 30)
    terms.total.backward()
    slope = model.output.q_mean.grad.abs().max(), model.output.q_cov.raw_factor.grad.abs().max()
    # Stein's identity holds for the expectation, and up to the sampling error for its estimate.
    assert max(slope) < (2e-3 if likelihood == "categorical" else 1e-6)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_weight_of_two_is_the_row_twice(likelihood):
    """In the objective and in a natural step, for all data at once."""
    draw = torch.Generator().manual_seed(0)
    config = DenseDKMConfig(
        num_features=2, num_inducing=4, likelihood=likelihood, divergence="exact", num_samples=20
    )
    model = DenseDKM.from_config(config).double()
    x = torch.randn(12, 2, generator=draw, dtype=torch.float64)
    y = (x > 0).double() if likelihood != "categorical" else (x[:, 0] > 0).long()
    model.initialise_(x, draw)
    model.eval()
    z = model.draw_samples(1, draw)
    weights = torch.tensor([2.0, 0.0, 1.0, 3.0] * 3).double()
    data = Dataset(x, y, ("a", "b") if likelihood == "categorical" else (), weights)
    scaled = data.weights_at(torch.arange(12), torch.float64, x.device)
    twice = torch.arange(12).repeat_interleave(weights.long())
    a = objective(model(x), model.likelihood, y, z, data.total_weight, scaled)
    b = objective(model(x[twice]), model.likelihood, y[twice], z, len(twice))
    torch.testing.assert_close(a.total, b.total)
    other = copy.deepcopy(model)
    natural_step_(model, [(x, y, scaled)], data.total_weight, 0.5, z)
    natural_step_(other, [(x[twice], y[twice], None)], len(twice), 0.5, z)
    torch.testing.assert_close(model.output.q_mean, other.output.q_mean)
    torch.testing.assert_close(model.output.q_cov.factor, other.output.q_cov.factor)


def test_variances_below_zero_are_counted(monkeypatch):
    """With a k_tt that is too small, as rounding can make it."""
    draw = torch.Generator().manual_seed(0)
    config = DenseDKMConfig(num_features=2, num_inducing=4, likelihood="gaussian", num_samples=2)
    model = DenseDKM.from_config(config).double()
    x = torch.randn(12, 2, generator=draw, dtype=torch.float64)
    model.initialise_(x, draw)
    top = natural._top
    monkeypatch.setattr(
        natural, "_top", lambda *a: replace(top(*a), tt_diag=-100 * torch.ones(12).double())
    )
    z = model.draw_samples(1, draw)
    assert natural_step_(model, [(x, x, None)], 12, 0.5, z) == 12


def test_tables_have_float64_until_there_are_many_rows(sine, monkeypatch):
    monkeypatch.setattr(defaults, "WIDE_ROWS", 20)
    x, y = sine
    for rows, precision, dtype in (
        (20, "auto", torch.float64),
        (21, "auto", torch.float32),
        (21, "64-true", torch.float64),
        (20, "32-true", torch.float32),
    ):
        model = DKMRegressor(max_epochs=2, num_inducing=5, random_state=0, precision=precision)
        assert model.fit(x[:rows], y[:rows]).predictor_.trainable.dtype == dtype
        model = DKMRegressor(num_inducing=5, random_state=0, precision=precision)
        assert model.partial_fit(x[:rows], y[:rows]).predictor_.trainable.dtype == dtype


# ---- weights, and parameters without a meaning ----


def test_weights_of_rows_and_classes(moons):
    x, y = moons
    plain = DKMClassifier(**FAST).fit(x, y)
    ones = DKMClassifier(**FAST).fit(x, y, sample_weight=np.ones(80))
    np.testing.assert_allclose(plain.predict_proba(x), ones.predict_proba(x), rtol=1e-6)
    half = np.where(np.arange(80) < 40, 1.0, 0.0)
    removed = DKMClassifier(**FAST).fit(x[:40], y[:40])
    zero = DKMClassifier(**FAST).fit(x, y, sample_weight=half)
    np.testing.assert_allclose(removed.predict_proba(x), zero.predict_proba(x), rtol=1e-6)
    for weights in ({0: 50.0, 1: 1.0}, {1: 50.0}):
        favoured = DKMClassifier(**FAST, class_weight=weights).fit(x, y)
        share = (favoured.predict(x) == max(weights, key=weights.get)).mean()
        assert share > (plain.predict(x) == max(weights, key=weights.get)).mean()
    rare = np.r_[np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:8]]
    balanced = DKMClassifier(**FAST, class_weight="balanced").fit(x[rare], y[rare])
    plain = DKMClassifier(**FAST).fit(x[rare], y[rare])
    assert balanced.predict_proba(x)[:, 1].mean() > plain.predict_proba(x)[:, 1].mean()


def test_class_weights_survive_a_file(moons, tmp_path):
    DKMClassifier(**FAST, class_weight={0: 2.0, 1: 1.0}).fit(*moons).save_pretrained(tmp_path)
    assert DKMClassifier.from_pretrained(tmp_path).class_weight == {0: 2.0, 1: 1.0}


def test_the_decision_function_agrees_with_the_prediction(classifier, moons):
    log_odds = classifier.decision_function(moons[0])
    p = classifier.predict_proba(moons[0])
    np.testing.assert_allclose(log_odds, np.log(p[:, 1] / p[:, 0]))
    assert ((log_odds > 0) == classifier.predict(moons[0])).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": "x"},
        {"device": "gpu"},
        {"device": "cuda"},
        {"num_samples": 0},
        {"precision": 1},
    ],
)
def test_parameters_without_a_meaning_are_named(moons, images, changes):
    (name,) = changes
    if changes == {"device": "cuda"} and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device, so the setting is fine here")
    for estimator, data in ((DKMClassifier, moons), (ConvDKMClassifier, images)):
        with pytest.raises(ValueError, match=name):
            estimator(**changes).fit(*data)
        with pytest.raises(ValueError, match=name):
            estimator(**changes).partial_fit(*data, classes=np.unique(data[1]))


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (DKMRegressor(lr="a"), "lr must be a number, such as 0.1, got 'a'"),
        (DKMRegressor(nu=None), "nu must be a number or 'auto', got None"),
        (DKMRegressor(nu="a"), "nu must be a number or 'auto', got 'a'"),
        (DKMClassifier(skr_jitter="a"), "skr_jitter must be a number, such as 0.0, got 'a'"),
        (
            DKMClassifier(validation_fraction="a"),
            "validation_fraction must be a number, such as 0.1, got 'a'",
        ),
        (DKMClassifier(kernel=3), "kernel must be a str, got 3"),
        (DKMClassifier(lengthscales=2), "lengthscales must be 'none' or .*, got 2"),
        (DKMClassifier(class_weight=3), "class_weight must be a dict or 'balanced' or None, got 3"),
        (DKMClassifier(standardize="no"), "standardize must be a bool, such as True, got 'no'"),
        (
            ConvDKMClassifier(num_inducing=4),
            r"num_inducing must be a tuple of integers, such as \(64, 64\), got 4",
        ),
        (ConvDKMClassifier(strides=("a", 2)), "strides must be a tuple .*, got \\('a', 2\\)"),
        (ConvDKMClassifier(image_shape=5), "image_shape must be a tuple of integers or None"),
        (FullRankDKMRegressor(num_layers="a"), "num_layers must be an integer, such as 1, got 'a'"),
        (NNGPRegressor(memory="1GB"), "memory must be an integer or None, got '1GB'"),
    ],
    ids=str,
)
def test_parameters_of_another_type_are_named(moons, estimator, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        estimator.fit(*moons)


def test_parameters_of_numpy_are_numbers(moons):
    model = DKMClassifier(n_iter_no_change=np.int64(4), max_epochs=1, lr=np.float32(0.1))
    model.set_params(standardize=np.True_, random_state=np.random.RandomState(0))
    assert model.fit(*moons).predict(moons[0]).shape == moons[1].shape


@pytest.mark.parametrize("kind", [DKMClassifier, DKMRegressor, ConvDKMClassifier])
@pytest.mark.parametrize("weights", ["balanced", {0: 1.0}, ["a", "b"]])
def test_weights_that_are_no_numbers_are_named(moons, kind, weights):
    with pytest.raises(ValueError, match=r"^sample_weight must be a number for each.*class_weight"):
        kind().fit(*moons, sample_weight=weights)


def test_lists_of_several_lengths_are_named(moons):
    x, _ = moons
    ragged = [[1.0, 2.0], [3.0]]
    for call in (
        lambda: DKMRegressor().fit(ragged, [0, 1]),
        lambda: DKMRegressor().fit(x[:2], ragged),
        lambda: DKMClassifier().fit(x[:2], ragged),
        lambda: ConvDKMClassifier().fit([ragged, ragged], [0, 1]),
        lambda: NNGPRegressor().fit(ragged, [0, 1]),
    ):
        with pytest.raises(ValueError, match="must hold lists of equal lengths"):
            call()


def test_a_regressor_takes_every_likelihood_but_that_of_classes(sine):
    x, y = sine
    counts = np.random.default_rng(0).poisson(np.exp(1 + np.sin(x[:, 0])))
    fast = {"num_inducing": 15, "max_epochs": 25, "random_state": 0}
    poisson = DKMRegressor(likelihood="poisson", **fast).fit(x, counts)
    assert np.corrcoef(poisson.predict(x), np.exp(1 + np.sin(x[:, 0])))[0, 1] > 0.9
    drawn = poisson.sample_y(x[:3], 5)
    assert (drawn == np.round(drawn)).all()
    outliers = y.copy()
    outliers[::10] += 500
    robust, plain = (
        DKMRegressor(likelihood=name, **fast).fit(x, outliers) for name in ("student_t", "gaussian")
    )
    clean = 50 + 10 * np.sin(2 * x[:, 0])
    errors = [np.abs(model.predict(x) - clean).mean() for model in (robust, plain)]
    assert errors[0] < 0.2 * errors[1]
    with pytest.raises(ValueError, match="likelihood='categorical' is for classes"):
        DKMRegressor(likelihood="categorical").fit(x, y)
    with pytest.raises(ValueError, match="unknown likelihood 'x'"):
        DKMRegressor(likelihood="x").fit(x, y)
    with pytest.raises(ValueError, match="counts must be whole"):
        DKMRegressor(likelihood="poisson").fit(x, y)


def test_a_fit_changes_nothing_for_the_whole_process(moons, monkeypatch):
    monkeypatch.setattr(
        "gramian.train.runtime.engine.keep_freed_memory", lambda: pytest.fail("mallopt")
    )
    DKMClassifier(**FAST | {"max_epochs": 1}).fit(*moons)


@pytest.mark.parametrize(
    ("given", "layers", "nu"), [({}, 2, 9.0), ({"num_layers": 0, "nu": 7}, 0, 7)]
)
def test_sizes_suit_the_rows_unless_they_are_given(given, layers, nu):
    X = np.random.default_rng(0).normal(size=(5000, 2))
    model = DKMRegressor(max_epochs=1, num_inducing=5, random_state=0, **given).fit(X, X[:, 0])
    assert model.predictor_.config.num_layers == layers
    assert model.predictor_.config.nu == pytest.approx(nu, abs=0.01)
    assert model.predictor_.config.num_inducing == 5


# ---- weights mean the same everywhere ----


def with_junk(x, y, weights=None):
    """The same rows among others of weight 0, with values that would be seen anywhere."""
    junk_x = np.full_like(x[:7], 250 if x.dtype == np.uint8 else 1e6)
    junk_y = np.repeat(y[:1] if y.dtype.kind in "OU" else np.full_like(y[:1], 77), 7, axis=0)
    weights = np.ones(len(x)) if weights is None else weights
    order = np.random.default_rng(3).permutation(len(x) + 7)
    there = np.sort(order[: len(x)])
    all_x, all_y, all_w = (
        np.empty((len(order), *part.shape[1:]), part.dtype) for part in (x, y, weights)
    )
    junk = np.sort(order[len(x) :])
    all_x[there], all_y[there], all_w[there] = x, y, weights
    all_x[junk], all_y[junk], all_w[junk] = junk_x, junk_y, 0
    return all_x, all_y, all_w


@pytest.mark.parametrize("way", ["fit", "partial_fit"])
@pytest.mark.parametrize("kind", ["classes", "real", "images"])
def test_a_row_of_weight_0_is_not_there(moons, sine, images, kind, way):
    """Nothing that a row of weight 0 holds is looked at: not even its class."""
    model, (x, y) = {
        "classes": (DKMClassifier(**FAST), moons),
        "real": (DKMRegressor(**FAST), (sine[0][:60], sine[1][:60])),
        "images": (ConvDKMClassifier(**FAST_CONV), (images[0] / 200, images[1])),
    }[kind]
    all_x, all_y, weights = with_junk(x, y)
    calls = [(x, y, np.ones(len(x))), (all_x, all_y, weights)]
    first = {"classes": np.unique(y)} if way == "partial_fit" and kind != "real" else {}
    plain, among = (getattr(clone(model), way)(a, b, sample_weight=w, **first) for a, b, w in calls)
    assert plain.predictor_.scaler == among.predictor_.scaler
    ask = "predict" if kind == "real" else "predict_proba"
    np.testing.assert_array_equal(getattr(plain, ask)(x), getattr(among, ask)(x))
    history = [
        [{**row, "seconds": 0, "memory_mb": 0} for row in m.history_] for m in (plain, among)
    ]
    assert history[0] == history[1]
    with pytest.raises(ValueError, match=r"all weights are 0|non-zero"):
        clone(model).fit(x, y, sample_weight=np.zeros(len(x)))


def test_balanced_classes_count_rows_by_their_weights(moons):
    y = moons[1]
    weights = np.where(y == 1, 3.0, 1.0)
    twice = np.repeat(np.arange(80), weights.astype(int))
    of_rows = weights_of_classes("balanced", y, weights)
    expected = compute_sample_weight("balanced", y[twice])
    np.testing.assert_allclose(of_rows[twice], expected)


def test_a_portion_may_lack_a_class_that_a_weight_is_for(moons):
    x, y = moons
    model = DKMClassifier(**FAST, class_weight={1: 5.0})
    model.partial_fit(x[y == 0][:20], y[y == 0][:20], classes=[0, 1])
    model.partial_fit(x[y == 0][20:], y[y == 0][20:]).partial_fit(x, y)
    assert model._stream.weight_seen == 40 + 40 + 5 * 40
    with pytest.raises(ValueError, match="not in class_weight"):
        DKMClassifier(**FAST, class_weight={7: 5.0}).partial_fit(x, y, classes=[0, 1])


def test_portions_after_a_fit_count_as_their_share(sine):
    """Three rows that were there already change little, however they come."""
    x, y = sine
    model = DKMRegressor(num_inducing=20, max_epochs=40, random_state=0).fit(x, y)
    before = model.predict(x)
    copy = pickle.loads(pickle.dumps(model)).partial_fit(x[:3], y[:3])
    assert np.abs(copy.predict(x) - before).mean() < 0.2
    assert (copy._stream.num_seen, copy._stream.weight_seen) == (203, 203)


def test_files_know_how_much_was_seen(sine, tmp_path):
    x, y = sine
    model = DKMRegressor(**FAST).fit(x[:100], y[:100])
    model.partial_fit(x[100:], y[100:], sample_weight=np.full(100, 2.0))
    model.save_pretrained(tmp_path)
    loaded = DKMRegressor.from_pretrained(tmp_path)
    assert loaded._stream == replace(model._stream, step=0, optimisers={})
    assert model._stream.weight_seen == 300


def test_the_learning_rate_of_portions_may_change(sine):
    x, y = sine
    model = DKMRegressor(**FAST, lr=0.1).partial_fit(x, y)
    kernel = [value.clone() for value in model.model_.inputs.parameters()]
    model.set_params(lr=1e-12).partial_fit(x, y)
    for before, after in zip(kernel, model.model_.inputs.parameters(), strict=True):
        torch.testing.assert_close(before, after, rtol=0, atol=1e-9)


def test_the_optimiser_of_portions_may_change(images):
    x, y = images
    model = ConvDKMClassifier(**FAST_CONV, optimiser="muon").partial_fit(x, y, classes=np.unique(y))
    model.set_params(optimiser="adam").partial_fit(x, y)
    assert [*model._stream.optimisers] == ["adam"]
    model.set_params(optimiser="muon").partial_fit(x, y)
    assert model.n_iter_ == 3


def test_a_warm_start_keeps_what_was_held_out(moons, monkeypatch):
    x, y = moons
    held = []

    def noted(*arguments):
        train, validation = hold_out(*arguments)
        held.append(validation.x)
        return train, validation

    monkeypatch.setattr(epochs, "hold_out", noted)
    settings = {**FAST, "random_state": None, "max_epochs": 1}
    model = DKMClassifier(**settings, early_stopping=True, warm_start=True)
    model.fit(x, y).fit(x, y)
    assert torch.equal(*held)


def test_the_first_portion_says_what_shape_predictions_have(sine):
    x, y = sine
    model = DKMRegressor(**FAST).partial_fit(x, y).partial_fit(x, y[:, None])
    assert model.predict(x).shape == (200,)
    model = DKMRegressor(**FAST).partial_fit(x, y[:, None]).partial_fit(x, y)
    assert model.predict(x).shape == (200, 1)
