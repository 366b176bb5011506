"""The estimators without inducing points: scikit-learn's own checks, and what those do not ask."""

import json
import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris, make_moons
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning, NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.utils.estimator_checks import parametrize_with_checks

from gramian import Predictor
from gramian.train.estimators import (
    DKMClassifier,
    FullRankDKMClassifier,
    FullRankDKMRegressor,
    NNGPClassifier,
    NNGPRegressor,
)
from gramian.train.pretrained import PretrainedError

SEEDED = {"random_state": 0}
FEW = {**SEEDED, "max_iter": 2}
CLASSIFIERS = [FullRankDKMClassifier, NNGPClassifier]
REGRESSORS = [FullRankDKMRegressor, NNGPRegressor]
FAST = [
    *(kind(**FEW, num_samples=8) for kind in CLASSIFIERS),
    *(kind(**FEW) for kind in REGRESSORS),
]
every = pytest.mark.parametrize("estimator", FAST, ids=lambda e: type(e).__name__)
unconverged = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def moons():
    return make_moons(40, noise=0.2, random_state=0)


@pytest.fixture(scope="module")
def sine():
    draw = np.random.default_rng(0)
    x = draw.uniform(-3, 3, (120, 1))
    return x, 50 + 10 * np.sin(2 * x[:, 0]) + 2 * draw.standard_normal(120)


@pytest.fixture(scope="module")
def regressor(sine):
    return FullRankDKMRegressor(**SEEDED, tol=1e-4).fit(sine[0][:40], sine[1][:40])


@pytest.fixture(scope="module")
def images():
    """Stripes or noise, in two channels of different scales."""
    draw = np.random.default_rng(0)
    y = np.arange(24) % 2
    x = draw.standard_normal((24, 2, 4, 4))
    x[y == 0, :, ::2] += 2
    return x * np.array([1, 100]).reshape(2, 1, 1), np.array(["stripes", "noise"])[y]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(FAST)
def test_scikit_learn_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataConversionWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)


# ---- classes ----


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_defaults_learn_iris(kind):
    x, y = load_iris(return_X_y=True)
    model = kind(**SEEDED).fit(x[::2], y[::2])
    assert model.score(x[1::2], y[1::2]) > 0.92
    assert np.log(model.predict_proba(x[1::2])[range(75), y[1::2]]).mean() > -0.15
    assert model.converged_
    assert len(model.history_) == model.n_iter_ <= 400
    assert model.history_[-1] == {"iteration": model.n_iter_, "objective": model.objective_}


def test_names_of_classes_and_probabilities(moons):
    x, y = moons
    names = np.array(["no", "yes"])[y]
    model = NNGPClassifier(**SEEDED).fit(x, names)
    p = model.predict_proba(x)
    assert set(model.predict(x)) == {"no", "yes"}
    assert model.score(x, names) > 0.9
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(model.predict_log_proba(x), np.log(p))
    mean, var = model.latent_mean_and_variance(x)
    assert mean.shape == var.shape == (40, 2)
    assert (var > 0).all()


@unconverged
def test_the_variational_output(moons):
    model = FullRankDKMClassifier(
        likelihood="categorical", max_iter=60, num_samples=10, **SEEDED
    ).fit(*moons)
    assert model.score(*moons) > 0.9  # no straight line gets there
    assert model.model_.output.q_mean.abs().max() > 0.1
    again = clone(model).fit(*moons)
    assert (again.predict_proba(moons[0]) == model.predict_proba(moons[0])).all()
    other = clone(model).set_params(random_state=1).fit(*moons)
    assert (other.model_.output.q_mean != model.model_.output.q_mean).any()


# ---- real targets ----


def test_intervals_are_calibrated(regressor, sine):
    x, y = sine[0][40:], sine[1][40:]
    mean, std = regressor.predict(x, return_std=True)
    assert mean.shape == std.shape == (80,)
    assert regressor.score(x, y) > 0.8
    assert 0.8 <= (np.abs(y - mean) < 1.96 * std).mean() <= 1
    latent, var = regressor.latent_mean_and_variance(x)
    np.testing.assert_allclose(latent, mean)
    noise_var = std**2 - var
    np.testing.assert_allclose(noise_var, noise_var[0])
    assert 0.5 < noise_var[0] < 8
    samples = regressor.sample_y(x[:3], n_samples=2000)
    np.testing.assert_allclose(samples.mean(1), mean[:3], atol=5 * std.max() / 2000**0.5)
    np.testing.assert_allclose(samples.std(1), std[:3], rtol=0.1)


def test_predictions_do_not_depend_on_the_batch(regressor):
    x = np.linspace(-3, 3, 600)[:, None]  # batches of 256 rows
    mean, std = regressor.predict(x, return_std=True)
    some, their_std = regressor.predict(x[::-1][:7], return_std=True)
    np.testing.assert_allclose(some, mean[::-1][:7], rtol=1e-9)
    np.testing.assert_allclose(their_std, std[::-1][:7], rtol=1e-9)


def test_without_layers_it_is_the_gaussian_process_of_scikit_learn():
    draw = np.random.default_rng(0)
    x, new = draw.standard_normal((30, 2)), draw.standard_normal((5, 2))
    y = np.stack([np.sin(x[:, 0]), x[:, 1]], 1) + 0.1 * draw.standard_normal((30, 2))
    model = NNGPRegressor(
        num_layers=0, kernel_jitter=1e-12, standardize=False, tol=1e-4, shared_noise=True
    ).fit(x, y)
    module = model.model_
    ell = module.log_lengthscales.exp().detach().numpy()
    w, b = (value.item() for value in module.kernel.variances(module.train_inputs))
    kernel = ConstantKernel(w) * RBF(ell * 2**0.5) + ConstantKernel(b)
    kernel += WhiteKernel(module.likelihood.noise_var.item())
    theirs = GaussianProcessRegressor(kernel, optimizer=None, normalize_y=True).fit(x, y)
    mean, std = model.predict(new, return_std=True)
    expected, their_std = theirs.predict(new, return_std=True)
    np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(std, their_std, rtol=1e-5)
    # theirs is that of standardised targets
    evidence = theirs.log_marginal_likelihood_value_ / 30 - np.log(y.std(0)).sum()
    assert model.objective_ == pytest.approx(evidence, rel=1e-4)


@unconverged
def test_a_strong_pull_gives_the_nngp(sine):
    x, y = sine[0][:20], sine[1][:20]
    nngp = NNGPRegressor(max_iter=40).fit(x, y)
    strong = FullRankDKMRegressor(max_iter=40, nu=1e8).fit(x, y)
    weak = FullRankDKMRegressor(max_iter=40, nu=1.0).fit(x, y)
    expected, std = nngp.predict(x, return_std=True)
    np.testing.assert_allclose(strong.predict(x), expected, atol=1e-2 * std.mean())
    assert strong.objective_ == pytest.approx(nngp.objective_, abs=1e-4)
    assert weak.objective_ > nngp.objective_ + 0.01
    assert np.abs(weak.predict(x) - expected).max() > 0.1 * std.mean()


@pytest.mark.parametrize("kind", REGRESSORS)
def test_float32(sine, kind):
    model = kind(precision="32-true", tol=1e-4).fit(*sine)
    assert model.score(*sine) > 0.85
    assert model.predict(sine[0]).dtype == np.float32


def test_constant_targets_and_single_rows():
    x = np.arange(6.0)[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        flat = FullRankDKMRegressor().fit(x, np.full(6, 7.0))
        one = NNGPRegressor().fit(x[:1], [3.0])
    np.testing.assert_allclose(flat.predict(x + 0.5), 7, atol=1e-6)
    np.testing.assert_allclose(one.predict(x), 3, atol=1e-6)


# ---- images ----


@unconverged
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_images(images, kind, tmp_path):
    x, y = images
    model = kind(**SEEDED, max_iter=10, strides=(2,)).fit(x, y)
    assert model.model_.axes[0] == "images"
    assert model.score(x, y) > 0.9
    assert model.n_features_in_ == 32
    scaled = model.model_.train_inputs
    np.testing.assert_allclose(scaled.mean((0, 2, 3)), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.std((0, 2, 3), correction=0), 1, rtol=1e-12)
    p = model.predict_proba(x)
    np.testing.assert_allclose(model.predict_proba(x[5:6].tolist()), p[5:6], atol=1e-9)
    model.save_pretrained(tmp_path)
    assert (kind.from_pretrained(tmp_path).predict_proba(x) == p).all()
    for wrong in (x[..., :3], x[:, :1], x.reshape(24, 32), x[:, 0]):
        with pytest.raises(ValueError, match=r"shape|images"):
            model.predict(wrong)


@unconverged
def test_real_targets_of_images(images):
    x, _ = images
    y = x[:, 0].mean((1, 2))
    model = FullRankDKMRegressor(max_iter=5, standardize=False, strides=(2,)).fit(x / 10, y)
    assert model.score(x / 10, y) > 0.8
    assert (model.model_.train_inputs.numpy() == x / 10).all()


# ---- copies and files ----


@unconverged
@every
def test_copies_and_files_keep_every_bit(estimator, moons, tmp_path):
    x, y = moons
    model = clone(estimator).fit(x, y)
    assert {**model.get_params(), "random_state": None} == {
        **clone(model).get_params(),
        "random_state": None,
    }
    expected = [model.predict(x), *model.latent_mean_and_variance(x)]
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    for copy in (pickle.loads(pickle.dumps(model)), loaded, clone(model).fit(x, y)):
        found = [copy.predict(x), *copy.latent_mean_and_variance(x)]
        assert all((a == b).all() for a, b in zip(found, expected, strict=True))
        for name in ("history_", "n_iter_", "converged_", "objective_", "n_features_in_"):
            assert getattr(copy, name) == getattr(model, name)
    assert loaded.get_params() == model.get_params()
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "estimator.json",
        "model.safetensors",
    }
    with pytest.raises(PretrainedError, match="not a DKMClassifier"):
        DKMClassifier.from_pretrained(tmp_path)
    assert Predictor.from_pretrained(tmp_path).config == model.predictor_.config


@unconverged
def test_damaged_files(moons, tmp_path):
    NNGPRegressor(**FEW, strides=()).fit(*moons).save_pretrained(tmp_path)

    def load():
        return NNGPRegressor.from_pretrained(tmp_path)

    config = tmp_path / "config.json"
    wrong = json.loads(config.read_text())
    del wrong["digest"]  # as somebody does who edits it
    whole = json.dumps(wrong)
    wrong["model"]["number_of_layers"] = 3
    for text, message in [
        (json.dumps(wrong), "number_of_layers"),
        (whole.replace('"full_rank"', '"dense"'), "there is no setting relative"),
        ("{", "cannot be read"),
    ]:
        config.write_text(text)
        with pytest.raises(PretrainedError, match=message):
            load()
    config.write_text(whole)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(PretrainedError, match="cannot be read"):
        load()
    weights.unlink()
    with pytest.raises(PretrainedError, match=r"model.safetensors is missing"):
        load()


# ---- what a person sees ----


def test_too_few_iterations_warn_and_progress_is_shown(moons, capsys):
    with pytest.warns(ConvergenceWarning, match=r"after 6 iterations .* raise max_iter"):
        model = FullRankDKMRegressor(max_iter=3, verbose=True).fit(*moons)
    assert not model.converged_
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("40 training points: about")
    assert lines[-1] == f"iteration 6  objective {model.objective_:.6f}"
    assert len(lines) == 7


# ---- errors ----


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_iter": 0}, "max_iter must be a positive integer"),
        ({"num_samples": 0}, "num_samples must be a positive integer"),
        ({"kernel": "none"}, "unknown kernel"),
        ({"nu": -1}, "nu must be"),
        ({"alpha": 0}, "alpha must be positive"),
        ({"likelihood": "gaussian"}, r"likelihood must be one of \['categorical', 'dirichlet'\]"),
        ({"divergence": "none"}, "divergence must be one of"),
        ({"lengthscales": "some"}, "lengthscales must be one of"),
        ({"precision": "16-true"}, "precision must be one of"),
        ({"strides": (2,)}, "strides are for images"),
    ],
)
def test_wrong_arguments(moons, changes, message):
    with pytest.raises(ValueError, match=message):
        FullRankDKMClassifier(**changes).fit(*moons)


def test_wrong_data(moons, regressor):
    x, y = moons
    with pytest.raises(ValueError, match="at least 2 classes"):
        NNGPClassifier().fit(x, np.zeros(40))
    with pytest.raises(ValueError, match="NaN"):
        NNGPRegressor().fit(np.where(x == x.max(), np.nan, x), y)
    with pytest.raises(ValueError, match="NaN"):
        NNGPRegressor().fit(x, np.where(y == 0, np.nan, y))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        NNGPRegressor().fit(x, y[:-1])
    with pytest.raises(ValueError, match=r"images \(n, C, H, W\), got \(40, 2, 1\)"):
        NNGPRegressor().fit(x[..., None], y)
    with pytest.raises(ValueError, match="2 features, but FullRankDKMRegressor is expecting 1"):
        regressor.predict(x)
    with pytest.raises(NotFittedError):
        NNGPClassifier().predict(x)
    with pytest.raises(MemoryError, match=r"P = 40 .* GB are allowed"):
        FullRankDKMClassifier(memory=1000).fit(x, y)
