"""All of the covariance: its diagonal, its parts, other ways to it, and samples."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes

from gramian import (
    SKR,
    Bandwidth,
    ConvDKM,
    ConvDKMConfig,
    DenseDKM,
    DenseDKMConfig,
    DKMRegressor,
    FullRankConfig,
    FullRankDKMRegressor,
    NNGPRegressor,
    NormChoice,
    fit,
)
from gramian.nn.full_rank.full_rank_dkm import FullRankConvDKM, FullRankDKM
from gramian.nn.joint import Joint, joint
from gramian.train.pretrained import PretrainedError
from tests.samples import generator, random_

X = torch.randn(9, 4, generator=generator(1), dtype=torch.float64)
NEW = torch.randn(5, 4, generator=generator(2), dtype=torch.float64)
IMAGES = torch.randn(4, 2, 4, 4, generator=generator(3), dtype=torch.float64)
NEW_IMAGES = torch.randn(3, 2, 4, 4, generator=generator(4), dtype=torch.float64)


def close(found, expected, tolerance=1e-9):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


DENSE = DenseDKMConfig(num_features=4, num_outputs=2, num_inducing=6, num_layers=2)


def dense(**changes):
    model = DenseDKM.from_config(replace(DENSE, **changes)).double()
    model.initialise_(X, generator())
    random_(model)
    return model.eval()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_layers": 0},
        {"unexplained": "dropped", "bandwidth": Bandwidth(3.0, True)},
        {"centre": True, "num_layers": 2},
        {"kernel": "squared_exponential", "lengthscales": "per_feature"},
        {"kernel": "arc_cosine", "skr": SKR(None, 0.1)},
        {"norm": NormChoice(data="local", scale_inducing="local")},
        {"norm": NormChoice(statistics="batch")},
    ],
    ids=lambda changes: ", ".join(changes) or "published",
)
def test_the_diagonal_is_what_the_model_predicts(changes):
    model = dense(**changes)
    q, alone = joint(model, NEW), model.predict(NEW)
    close(q.mean, alone.mean)
    close(q.cov.diagonal(dim1=1, dim2=2).mT, alone.var)
    close(q.cov, q.cov.mT)
    assert torch.linalg.eigvalsh(q.cov).min() > -1e-9
    if changes != {"norm": NormChoice(statistics="batch")}:
        close(joint(model, NEW[1:4]).cov, q.cov[:, 1:4, 1:4])  # others change nothing


def test_without_layers_it_is_a_sparse_gaussian_process():
    """K_tt − K_ti K_ii⁻¹ K_it + K_ti K_ii⁻¹ A K_ii⁻¹ K_it, the kernel of all points at once."""
    model = dense(num_layers=0, norm=NormChoice.off(), kernel="squared_exponential")
    G_ii, (G_ti, _) = model.inputs.inducing(), model.inputs.rows(NEW)
    G = torch.cat([torch.cat([G_ii, G_ti.mT], 1), torch.cat([G_ti, NEW @ NEW.mT / 4], 1)])
    K = model.kernel.inducing(G)
    A = model.output.q_cov.matrix
    P = K[6:, :6] @ torch.linalg.inv(K[:6, :6])
    expected = K[6:, 6:] - P @ K[:6, 6:] + P @ A @ P.mT
    close(joint(model, NEW).cov[0], expected.detach(), 1e-7)


@pytest.mark.parametrize("likelihood", ["gaussian", "dirichlet", "categorical"])
@pytest.mark.parametrize(("x", "new"), [(X, NEW), (IMAGES, NEW_IMAGES)], ids=["rows", "images"])
@pytest.mark.parametrize("nu", [2.0, float("inf")])
def test_full_rank_models_of_any_kind(likelihood, x, new, nu):
    classes = likelihood != "gaussian"
    strides = () if x.ndim == 2 else (1, 2)
    config = FullRankConfig(
        num_layers=2, nu=nu, likelihood=likelihood, num_classes=2 if classes else None,
        strides=strides,
    )  # fmt: skip
    y = torch.arange(len(x)) % 2 if classes else x.flatten(1)[:, :2].sin()
    model = (FullRankDKM if x.ndim == 2 else FullRankConvDKM)(x, y, config)
    model.initialise_()
    random_(model.layers)
    q, alone = joint(model, new), model.predict(new)
    close(q.mean, alone.mean.detach())
    close(q.cov.diagonal(dim1=1, dim2=2).mT, alone.var.detach())
    close(joint(model, new[1:]).cov, q.cov[:, 1:, 1:])
    assert torch.linalg.eigvalsh(q.cov).min() > -1e-9


@pytest.mark.parametrize(("x", "new"), [(X, NEW), (IMAGES, NEW_IMAGES)], ids=["rows", "images"])
def test_an_nngp_has_the_covariance_of_a_model_that_owns_all_points(x, new):
    strides = () if x.ndim == 2 else (1, 2)
    config = FullRankConfig(num_layers=2, nu=float("inf"), strides=strides)
    kind = FullRankDKM if x.ndim == 2 else FullRankConvDKM
    both = torch.cat([x, new])
    small, large = (kind(data, data.flatten(1)[:, :1], config) for data in (x, both))
    small.initialise_()
    large.initialise_()
    K, P = large.top_kernel().detach(), len(x)
    noisy = K[:P, :P] + small.likelihood.noise_var.detach() * torch.eye(P, dtype=K.dtype)
    expected = K[P:, P:] - K[P:, :P] @ torch.linalg.solve(noisy, K[:P, P:])
    close(joint(small, new).cov[0], expected, 1e-8)


def test_samples_have_the_covariance():
    q = joint(dense(), NEW)
    drawn = q.sample(100_000, generator(5))
    assert drawn.shape == (100_000, 5, 2)
    close(drawn.mean(0), q.mean, 0.03)
    for c in range(2):
        found = torch.cov(drawn[..., c].mT)
        scale = q.cov[0].diagonal().max()
        assert ((found - q.cov[0]).abs() / scale).max() < 0.03
    assert torch.equal(q.sample(3, generator(6)), q.sample(3, generator(6)))


@pytest.fixture(scope="module")
def diabetes():
    x, y = load_diabetes(return_X_y=True)
    return x[:60], y[:60], x[60:72]


@pytest.mark.parametrize(
    "regressor",
    [
        DKMRegressor(max_epochs=3, num_inducing=20, random_state=0),
        DKMRegressor(max_epochs=3, num_inducing=20, likelihood="student_t", random_state=0),
        FullRankDKMRegressor(max_iter=3),
        NNGPRegressor(max_iter=3),
    ],
    ids=lambda model: f"{type(model).__name__} {getattr(model, 'likelihood', '')}",
)
@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.filterwarnings("ignore:no convergence")
def test_regressors_return_covariances_and_joint_samples(regressor, diabetes, targets):
    x, y, new = diabetes
    y = y if targets == 1 else np.stack([y, 3 * y + x[:, 0]], 1)
    model = regressor.fit(x, y)
    mean, std = model.predict(new, return_std=True)
    same, cov = model.predict(new, return_cov=True)
    assert np.array_equal(mean, same)
    shape = (12, 12) if targets == 1 else (12, 12, 2)
    assert cov.shape == shape
    diagonal = np.diagonal(cov).T if targets == 2 else np.diagonal(cov)
    np.testing.assert_allclose(diagonal, std**2, rtol=1e-8)
    drawn = model.sample_y(new, 3000, random_state=1)
    assert drawn.shape == ((12, 3000) if targets == 1 else (12, 2, 3000))
    one = drawn if targets == 1 else drawn[:, 0]
    first = cov if targets == 1 else cov[..., 0]
    deviation = np.sqrt(np.diagonal(first))
    np.testing.assert_allclose(np.cov(one) / np.outer(deviation, deviation),
                               first / np.outer(deviation, deviation), atol=0.12)  # fmt: skip
    with pytest.raises(RuntimeError, match="at most one"):
        model.predict(new, return_std=True, return_cov=True)


def test_neighbours_are_drawn_together(diabetes):
    """Two copies of a row differ in a sample only by their noise, and jitter."""
    x, y, new = diabetes
    model = DKMRegressor(max_epochs=3, num_inducing=20, random_state=0).fit(x, y)
    twice = np.repeat(new[:1], 2, 0)
    drawn = model.sample_y(twice, 4000)
    noise = float(
        model.model_.likelihood.noise_var.detach() * model.model_.likelihood.scale[0] ** 2
    )
    assert np.var(drawn[0] - drawn[1]) == pytest.approx(2 * noise, rel=0.15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outputs", [1, 3])
def test_samples_of_covariances_without_full_rank(dtype, outputs):
    """The last row has no variance, and rows 3 to 5 are sums of others; rounding is below 0."""
    half = torch.randn(outputs, 3, 3, generator=generator(), dtype=dtype)
    half = torch.cat([half, half @ half, torch.zeros(outputs, 1, 3, dtype=dtype)], 1)
    cov = half @ half.mT - torch.finfo(dtype).eps * torch.eye(7, dtype=dtype)
    mean, kept = torch.arange(21, dtype=dtype).view(7, 3), cov.clone()
    drawn = Joint(mean, cov).sample(60_000, generator(1))
    assert torch.equal(cov, kept)
    assert drawn.dtype == dtype
    for c in range(3):
        expected, scale = cov[c % outputs], cov[c % outputs].diagonal().max()
        assert ((torch.cov(drawn[..., c].mT) - expected).abs() / scale).max() < 0.03
        close(drawn[..., c].mean(0), mean[:, c], 0.03 * scale.sqrt())
    assert (drawn[:, 6] == mean[6]).all()


def test_functions_are_drawn_without_noise(diabetes):
    x, y, new = diabetes
    model = DKMRegressor(max_epochs=3, num_inducing=20, random_state=0).fit(x, y)
    drawn = model.sample_y(new, 4000, noise=False)
    mean, var = model.latent_mean_and_variance(new)
    np.testing.assert_allclose(drawn.mean(1), mean, atol=5 * (var.max() / 4000) ** 0.5)
    cov = model.predictor_.joint(torch.tensor(new)).cov[0].numpy()
    cov = cov * float(model.model_.likelihood.scale[0]) ** 2
    np.testing.assert_allclose(np.cov(drawn), cov, atol=0.1 * var.max())
    twice = model.sample_y(np.repeat(new[:1], 2, 0), 100, noise=False)
    assert np.var(twice[0] - twice[1]) < 0.02 * var[0]  # jitter


def test_what_has_no_joint_distribution():
    images = ConvDKM.from_config(
        ConvDKMConfig(image_shape=(1, 8, 8), num_inducing=(4,), strides=(2,), whitening=False)
    )
    data = torch.randn(6, 1, 8, 8, generator=generator())
    images.initialise_(data, generator())
    with pytest.raises(ValueError, match="this model is for images"):
        joint(images, data)
    counts = DKMRegressor(likelihood="poisson", max_epochs=2, num_inducing=5, random_state=0)
    rows = np.linspace(-1, 1, 30)[:, None]
    counts.fit(rows, np.round(np.exp(rows[:, 0])))
    with pytest.raises(ValueError, match="return_cov is for real targets"):
        counts.predict(rows, return_cov=True)
    assert counts.sample_y(rows, 2).shape == (30, 2)
    log_rates = counts.sample_y(rows, 500, noise=False)
    mean, var = counts.latent_mean_and_variance(rows)
    np.testing.assert_allclose(log_rates.mean(1), mean, atol=0.25 * var.max() ** 0.5)
    from gramian import NetworkConfig

    pixels = torch.randint(0, 255, (8, 1, 8, 8), generator=generator(), dtype=torch.uint8)
    network = fit(NetworkConfig(widths=(4,), strides=(2,), blocks_per_stage=1), pixels,
                  np.arange(8) % 2, max_epochs=1)  # fmt: skip
    with pytest.raises(PretrainedError, match="a Network has no joint distribution"):
        network.joint(pixels)
