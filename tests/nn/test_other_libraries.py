"""The limits that other libraries compute too: BoTorch's NNGP, scikit-learn's Gaussian process."""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from gramian import SKR, DenseDKM, DenseDKMConfig
from gramian.nn.full_rank.full_rank_config import FullRankConfig
from gramian.nn.full_rank.full_rank_dkm import FullRankDKM
from gramian.nn.steps.kernels import Bandwidth, Jitter
from tests.samples import generator, random_

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from botorch.models.kernels.infinite_width_bnn import InfiniteWidthBNNKernel

NO_JITTER = Jitter(0.0, 0.0)
WEIGHT_VAR, BIAS_VAR = 1.7, 0.3  # of a network with ReLU


def rows(n, seed, features=3):
    return torch.randn(n, features, generator=generator(seed), dtype=torch.float64)


def close(actual, expected, tolerance=1e-7):
    expected = torch.as_tensor(expected)
    torch.testing.assert_close(actual.detach(), expected, rtol=tolerance, atol=tolerance)


def with_a_bias(x):
    """Features whose G⁰ is that of the network's first layer, w·xx'/N + b."""
    N = x.shape[1]
    bias = x.new_full((len(x), 1), math.sqrt(BIAS_VAR))
    return math.sqrt(N + 1) * torch.cat([math.sqrt(WEIGHT_VAR / N) * x, bias], 1)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_dense_nngp_is_that_of_botorch(depth):
    """Full rank and with inducing points; BoTorch's kernel has the factor 1/2 of He's start."""
    network = InfiniteWidthBNNKernel(depth, acos_eps=0.0).double()
    network.weight_var, network.bias_var = WEIGHT_VAR, BIAS_VAR
    x, new = rows(6, seed=0), rows(4, seed=1)
    K_ii, K_ti = (network(points, x).to_dense().detach() for points in (x, new))
    k_tt = network(new, diag=True).detach()
    settings = {
        "kernel": "arc_cosine",
        "num_layers": depth - 1,
        "nu": math.inf,
        "weight_var": WEIGHT_VAR / 2,
        "bias_var": BIAS_VAR,
        "kernel_jitter": NO_JITTER,
    }
    noisy = K_ii + 0.2 * torch.eye(6, dtype=torch.float64)
    y = x[:, :1].sin()
    full = FullRankDKM(with_a_bias(x), y, FullRankConfig(noise_var=0.2, **settings))
    full.initialise_()
    q = full.predict(with_a_bias(new))
    close(full.top_kernel(), K_ii)
    close(q.mean, K_ti @ torch.linalg.solve(noisy, y))
    close(q.var[:, 0], k_tt - (K_ti * torch.linalg.solve(noisy, K_ti.mT).mT).sum(1))

    config = DenseDKMConfig(
        num_features=4,
        num_outputs=1,
        num_inducing=6,
        likelihood="gaussian",
        skr=SKR.off(),
        **settings,
    )
    sparse = DenseDKM.from_config(config).double()
    for name, parameter in sparse.named_parameters():  # their logarithms began in float32
        if name.endswith(("log_weight_var", "log_bias_var")):
            parameter.data.copy_(dict(full.named_parameters())["kernel." + name.split(".")[-1]])
    sparse.initialise_(with_a_bias(x), generator(), inducing=with_a_bias(x))
    chain = sparse.eval().inducing_chain({})
    gram = sparse.first_gram(with_a_bias(new), chain)
    for name, layer in sparse.layers.items():
        gram, _ = layer.data(gram, chain.layers[name])
    top, _ = sparse.top(gram, chain)
    close(top.ii, K_ii)
    close(top.ti, K_ti)
    close(top.tt_diag, k_tt)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("squared_exponential", RBF),
        ("matern32", lambda ell: Matern(ell, nu=1.5)),
        ("matern52", lambda ell: Matern(ell, nu=2.5)),
    ],
    ids=["rbf", "matern32", "matern52"],
)
def test_without_layers_posterior_and_evidence_are_those_of_scikit_learn(name, shape):
    """Mean, variance, log marginal likelihood, and its gradient by the logarithms of all scales."""
    x, new = rows(9, seed=0), rows(4, seed=1)
    y = x.sin() @ torch.tensor([[1.0], [0.5], [-0.3]], dtype=torch.float64)
    config = FullRankConfig(
        kernel=name,
        num_layers=0,
        lengthscales="per_feature",
        bandwidth=Bandwidth(1.3, learned=True),
        kernel_jitter=NO_JITTER,
    )
    model = FullRankDKM(x, y, config)
    model.initialise_()
    random_(model)
    w, b = (value.item() for value in model.kernel.variances(x))
    lengths = model.log_lengthscales.exp() * (3 / model.kernel.beta(x)).sqrt()
    kernel = ConstantKernel(w) * shape(lengths.detach().numpy()) + ConstantKernel(b)
    kernel += WhiteKernel(model.likelihood.noise_var.item())
    theirs = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(x.numpy(), y.numpy())
    # Their variance is of a new y at a new point: the noise is a part of the kernel's diagonal.
    mean, std = theirs.predict(new.numpy(), return_std=True)
    q = model.predict(new)
    close(q.mean[:, 0], np.ravel(mean))
    close(q.var[:, 0] + model.likelihood.noise_var, np.ravel(std) ** 2)

    evidence, gradient = theirs.log_marginal_likelihood(theirs.kernel_.theta, eval_gradient=True)
    objective = model.objective().total
    close(len(x) * objective, evidence)
    objective.backward()
    d_w, *d_lengths, d_b, d_noise = torch.as_tensor(gradient) / len(x)
    close(model.kernel.log_weight_var.grad, d_w)
    close(model.log_lengthscales.grad, torch.stack(d_lengths))
    close(model.kernel.log_bandwidth.grad, -0.5 * torch.stack(d_lengths).sum())
    close(model.kernel.log_bias_var.grad, d_b)
    close(model.likelihood.log_noise_var.grad.squeeze(), d_noise)
