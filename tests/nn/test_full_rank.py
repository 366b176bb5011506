"""Models without inducing points: the NNGP, the inducing-point models, and known optima."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.func import functional_call

from gramian import SKR, DenseDKM, DenseDKMConfig, NegativeVarianceError, NotPSDError, objective
from gramian.gram.blocks import GramBlocks
from gramian.gram.conditional import VarianceCheck
from gramian.gram.deep_linear import best_root, deep_linear_optimum
from gramian.gram.exact_gp import ExactGP, dirichlet_targets
from gramian.gram.full_blocks import FullBlocks, PairConvolution, pool_inducing
from gramian.nn.full_rank import full_rank_layer
from gramian.nn.full_rank.full_rank_config import FullRankConfig, check_training_data
from gramian.nn.full_rank.full_rank_dkm import FullRankConvDKM, FullRankDKM
from gramian.nn.full_rank.full_rank_layer import kernel_of_pairs
from gramian.nn.layers import DKMLayer
from gramian.nn.likelihoods import draw_noise
from gramian.nn.model import DKM
from gramian.nn.steps.conv import KernelConv
from gramian.nn.steps.gram_layer import GramLayer
from gramian.nn.steps.inputs import PatchInput
from gramian.nn.steps.kernels import KERNELS, Bandwidth, Jitter, Linear
from gramian.nn.steps.norm import GramNorm, NormChoice
from gramian.nn.steps.output import GPOutput, RelativeOutput
from gramian.nn.steps.pooling import NystromMean
from gramian.train.cost.full_rank_cost import check_memory, estimate
from tests import reference
from tests.samples import KERNEL_STEPS, flatten, generator, random_, random_features, random_psd

CONFIG = FullRankConfig(num_layers=2, num_samples=5, shared_noise=True)  # as published
PLAIN = replace(CONFIG, kernel="squared_exponential", kernel_jitter=Jitter(0.0, 0.0))
LABELS = replace(PLAIN, likelihood="categorical", nu=0.7, relative=False)
SPACE = (4, 4)


def rows(n=6, features=10, seed=0):
    return torch.randn(n, features, generator=generator(seed), dtype=torch.float64)


def images(n=3, channels=60, space=SPACE, seed=0):
    return torch.randn(n, channels, *space, generator=generator(seed), dtype=torch.float64)


def targets(x, config=CONFIG, num_outputs=2):
    if config.likelihood != "gaussian":
        return torch.arange(len(x)) % num_outputs
    mixed = x.flatten(1)[:, :num_outputs]
    return mixed.sin() + mixed.roll(1, 1)


def build(x, config=CONFIG):
    """A started model for rows or images."""
    model = (FullRankDKM if x.ndim == 2 else FullRankConvDKM)(x, targets(x, config), config)
    model.initialise_()
    return model


def grams_of(model, x):
    """FullBlocks of new data after each layer."""
    chain = model.inducing_chain()
    G, all_blocks = model.first_gram(x, chain), []
    for name, layer in model.layers.items():
        G = layer.data(G, chain.layers[name])
        all_blocks.append(G)
    return all_blocks


def close(actual, expected, tolerance):
    expected = torch.as_tensor(expected)
    torch.testing.assert_close(actual.detach(), expected.detach(), rtol=tolerance, atol=tolerance)


both = pytest.mark.parametrize("data", [rows, images], ids=["dense", "conv"])


# ---- ν = ∞: exact Gaussian process regression with the NNGP kernel, from loops ----


def nngp(model, new, grams=None):
    """The kernel matrix of training and new data by loops; ``grams`` replace the kernels."""
    config, x = model.config, model.train_inputs
    both_sets = torch.cat([x, new]).numpy()
    features = both_sets.reshape(*both_sets.shape[:2], -1).transpose(0, 2, 1)
    space, P = x.shape[2:], len(x)
    S = math.prod(space)
    flat = features.reshape(-1, features.shape[2])
    G = flat @ flat.T / flat.shape[1]
    w, b = (value.item() for value in model.kernel.variances(x))
    more = (w, b, config.kernel_jitter.relative, config.bandwidth.start)
    for layer in range(config.num_layers):
        G = reference.full_kernel(config.kernel, G, P * S, *more)
        if space:
            stride = config.strides[layer] if config.strides else 1
            G = reference.pair_convolution(G, space, config.filter_size, stride)
            space = tuple(math.ceil(side / stride) for side in space)
            S = math.prod(space)
        if grams is not None:
            G = reference.condition_full(G, grams[layer])
    return reference.full_kernel(config.kernel, reference.pool_pairs(G, S), P, *more)


@pytest.mark.parametrize("kernel", KERNELS)
def test_infinite_nu_is_exact_regression_with_the_nngp_kernel_dense(kernel):
    bandwidth = Bandwidth(1.5) if KERNELS[kernel].has_bandwidth else Bandwidth()
    config = replace(CONFIG, kernel=kernel, nu=math.inf, bandwidth=bandwidth)
    x, new = rows(), rows(3, seed=1)
    model = build(x, config)
    assert {name for name, _ in model.named_parameters() if "gram" in name} == set()
    K = nngp(model, new)
    mean, var = reference.gp_regression(K, targets(x).numpy(), model.likelihood.noise_var.item())
    q = model.predict(new)
    close(model.top_kernel(), K[:6, :6], 1e-10)
    close(q.mean, mean, 1e-10)
    close(q.var, var, 1e-10)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kernel": "arc_cosine", "strides": (2, 1)},
        {"kernel": "matern32", "filter_size": 5},
        {"kernel": "squared_exponential", "strides": (1, 3), "num_layers": 2},
        {"num_layers": 0},
    ],
    ids=["normalized", "arc_cosine_stride", "matern_5x5", "stride_3", "no_layer"],
)
def test_infinite_nu_is_exact_regression_with_the_nngp_kernel_convolutional(changes):
    """Kernel, convolution and pooling over all pairs of pixels, as loops."""
    config = replace(CONFIG, nu=math.inf, **changes)
    x, new = images(channels=3), images(2, channels=3, seed=1)
    model = build(x, config)
    K = nngp(model, new)
    mean, var = reference.gp_regression(K, targets(x).numpy(), model.likelihood.noise_var.item())
    q = model.predict(new)
    close(model.top_kernel(), K[:3, :3], 1e-10)
    close(q.mean, mean, 1e-10)
    close(q.var, var, 1e-10)


@both
def test_learned_gram_matrices_equal_loops(data):
    """Away from the kernel: each G conditions the new data as the equations say."""
    x, new = data(3), data(2, seed=1)
    model = random_(build(x, replace(CONFIG, weight_var=None, bias_var=None)))
    grams = [G.detach().numpy() for name, G in model.gram_matrices().items() if name != "input"]
    K = nngp(model, new, grams)
    mean, var = reference.gp_regression(K, targets(x).numpy(), model.likelihood.noise_var.item())
    q = model.predict(new)
    close(q.mean, mean, 1e-9)
    close(q.var, var, 1e-9)


@both
@pytest.mark.parametrize("likelihood", ["gaussian", "categorical", "dirichlet"])
def test_large_nu_started_at_the_kernel_is_the_nngp(data, likelihood):
    config = replace(CONFIG, likelihood=likelihood)
    x, new = data(), data(2, seed=1)
    limit, large = (build(x, replace(config, nu=nu)) for nu in (math.inf, 1e8))
    q, expected = large.predict(new), limit.predict(new)
    close(q.mean, expected.mean, 1e-8)
    close(q.var, expected.var, 1e-8)
    close(large.top_kernel(), limit.top_kernel(), 1e-8)
    noise = large.draw_samples(generator(2)) if likelihood == "categorical" else None
    terms = large.objective(noise)
    close(terms.log_lik, limit.objective(noise).log_lik, 1e-8)
    assert terms.kl["layer2.gram"].abs() / 1e8 < 1e-10  # D itself


# ---- inducing points at the training points ----


def dense_twin(model, x):
    """The inducing-point model with inducing inputs x and the same parameters, by name."""
    config = model.config
    twin = DenseDKM.from_config(
        DenseDKMConfig(
            num_features=x.shape[1],
            num_outputs=model.num_outputs,
            num_inducing=len(x),
            num_layers=config.num_layers,
            kernel=config.kernel,
            kernel_jitter=config.kernel_jitter,
            nu=config.nu,
            divergence=config.divergence,
            skr=SKR.off(),
            norm=NormChoice.off(),
            likelihood=config.likelihood,
            num_samples=config.num_samples,
            shared_noise=config.shared_noise,
        )
    ).double()
    twin.initialise_(x, generator(), inducing=x)
    missing, _ = twin.load_state_dict(shared(model.state_dict()), strict=False)
    assert not [name for name in missing if not name.startswith(("inputs", "output", "norm"))]
    return twin


def shared(state):
    return {name: value for name, value in state.items() if not name.startswith("train_")}


def assert_same_gradients(model, twin, tolerance):
    theirs = dict(twin.named_parameters())
    for name, parameter in model.named_parameters():
        close(parameter.grad, theirs[name].grad, tolerance)


@pytest.mark.parametrize("divergence", ["exact", "taylor", "taylor_symmetric"])
@pytest.mark.parametrize("kernel", ["squared_exponential", "normalized_gaussian", "arc_cosine"])
def test_inducing_points_at_the_data_give_the_full_rank_model(kernel, divergence):
    """Categorical: the same objective, gradients and predictions."""
    x, new = rows(), rows(4, seed=1)
    model = random_(build(x, replace(LABELS, kernel=kernel, divergence=divergence)))
    twin = dense_twin(model, x)
    noise = model.draw_samples(generator(2))
    terms = model.objective(noise)
    theirs = objective(twin(x), twin.likelihood, model.train_targets, noise, len(x))
    close(terms.log_lik, theirs.expected_log_lik, 1e-8)
    close(terms.total_kl, theirs.kl, 1e-8)
    close(terms.total, theirs.total, 1e-8)
    terms.total.backward()
    theirs.total.backward()
    assert_same_gradients(model, twin, 1e-8)
    q, expected = model.predict(new), twin(new).marginals
    close(q.mean, expected.mean, 1e-8)
    close(q.var, expected.var, 1e-8)


def test_targets_with_a_noise_each_are_models_of_their_own():
    x, new = rows(), rows(3, seed=1)
    together = random_(build(x, replace(PLAIN, nu=math.inf, shared_noise=False)))
    state = together.state_dict()
    evidence = 0.0
    for c in range(2):
        alone = FullRankDKM(x, targets(x)[:, c : c + 1], together.config)
        mine = {k: v[c : c + 1] if k.startswith("likelihood.") else v for k, v in state.items()}
        alone.load_state_dict(mine | {"train_targets": state["train_targets"][:, c : c + 1]})
        evidence = evidence + alone.objective().total
        q, both_q = alone.predict(new), together.predict(new)
        close(both_q.mean[:, c : c + 1], q.mean, 1e-10)
        close(both_q.var[:, c : c + 1], q.var, 1e-10)
    close(together.objective().total, evidence, 1e-10)
    assert together.likelihood.noise_var.shape == (2,)


def test_inducing_points_at_the_data_and_the_best_q_give_the_full_rank_regression():
    x, new = rows(), rows(4, seed=1)
    model = random_(build(x, replace(PLAIN, nu=0.7, relative=False)))
    twin = dense_twin(model, x)
    K, y, noise_var = model.top_kernel(), model.train_targets, model.likelihood.noise_var
    noisy = K + noise_var * torch.eye(len(x), dtype=torch.float64)
    with torch.no_grad():
        twin.output.q_mean.copy_(K @ torch.linalg.solve(noisy, y))
        twin.output.q_cov.set_to_(K - K @ torch.linalg.solve(noisy, K))
    noise = draw_noise(1, (len(x), 2), generator(2), torch.float64)
    terms = model.objective()
    theirs = objective(twin(x), twin.likelihood, y, noise, len(x))
    close(terms.total, theirs.total, 1e-8)
    terms.total.backward()
    theirs.total.backward()  # at the best q its own gradient is zero, and the others agree
    assert_same_gradients(model, twin, 1e-8)
    assert twin.output.q_mean.grad.abs().max() < 1e-8
    q, expected = model.predict(new), twin(new).marginals
    close(q.mean, expected.mean, 1e-8)
    close(q.var, expected.var, 1e-8)


def conv_twin(model, x):
    """The inducing-point model whose inducing points are all pixels of all images.

    C_d selects pixel s + d of the same image, and nothing where that is outside; pooling mixes the
    pixels of an image into their mean.
    """
    config, (P, channels, *space) = model.config, x.shape
    layers, pixels = {}, list(np.ndindex(P, *space))
    for number, conv in enumerate(config.convolutions(tuple(space)), start=1):
        old = {pixel: place for place, pixel in enumerate(pixels)}
        pixels = list(np.ndindex(P, *conv.output_space))
        f, margin = conv.filter_size, conv.filter_size // 2
        C = torch.zeros(len(pixels), len(old), f, f, dtype=torch.float64)
        for new, (i, y, z) in enumerate(pixels):
            for dy, dx in np.ndindex(f, f):
                source = (i, conv.stride * y + dy - margin, conv.stride * z + dx - margin)
                if source in old:
                    C[new, old[source], dy, dx] = 1
        mixer = KernelConv(len(old), len(pixels), f, conv.stride).double()
        mixer.raw_mixing.data = C * math.sqrt(len(old))
        gram = GramLayer(len(pixels), config.nu, config.divergence, SKR.off())
        norm = GramNorm(len(pixels), conv.output_space, NormChoice.off())
        layers[f"layer{number}"] = DKMLayer(config.build_kernel(), mixer, gram, norm)
    N = len(pixels)
    mean = torch.eye(P, dtype=torch.float64).repeat_interleave(N // P, 1) * P / N
    pooling = NystromMean((P, N))
    pooling.raw_mixing.data = mean * math.sqrt(N)
    twin = DKM(
        data_shape=(channels, *space),
        whitening=None,
        inputs=PatchInput(P * math.prod(space), channels, 1),
        layers=layers,
        pooling=pooling,
        kernel=config.build_kernel(),
        norm=GramNorm(P, (), NormChoice.off()),
        output=GPOutput(P, model.num_outputs, config.divergence, tempered=False),
        likelihood=config.build_likelihood(model.num_outputs),
    ).double()
    twin.inputs.set_inducing_(x.permute(0, 2, 3, 1).reshape(-1, channels, 1, 1))
    twin.load_state_dict(shared(model.state_dict()), strict=False)
    return twin


@pytest.mark.parametrize("strides", [(1, 1), (1, 2)])
def test_all_pixels_as_inducing_points_give_the_full_rank_images(strides):
    """Γ_ii, Γ_ti, the Gram matrices and the KL terms agree, also at the border.

    Γ_tt does not: there the published model, and so ours with inducing points, divides by the
    pixels inside the image, and the equation by all of the filter. From layer 2 on that reaches ti.
    """
    x, new = images(), images(2, seed=1)
    model = random_(build(x, replace(LABELS, strides=strides)))
    twin = conv_twin(model, x)
    chain, theirs = model.inducing_chain(), twin.inducing_chain({})
    for name, state in chain.layers.items():
        close(state.K_ii, theirs.layers[name].K_ii, 1e-10)
        close(state.ii, theirs.layers[name].ii, 1e-10)
        close(model.layers[name].kl(state), twin.kl(theirs)[f"{name}.gram"], 1e-8)
    close(chain.top_ii, theirs.top_ii, 1e-10)
    terms = model.objective(model.draw_samples(generator()))
    close(terms.total_kl, torch.stack(list(twin.kl(theirs).values())).sum(), 1e-8)
    gram, _ = twin.layers["layer1"].data(twin.first_gram(new, theirs), theirs.layers["layer1"])
    G = grams_of(model, new)[0]
    close(G.ti.unflatten(1, SPACE), gram.ti, 1e-9)
    inside = torch.tensor([[4, 6, 6, 4], [6, 9, 9, 6], [6, 9, 9, 6], [4, 6, 6, 4]])
    Phi = kernel_of_pairs(
        model.layers["layer1"].kernel, model.first_gram(new, chain), chain.layers["layer1"].phi_ii
    )
    K = model.layers["layer1"].conv.data(Phi, chain.layers["layer1"].K_ii)
    k_tt, g_tt = (blocks.tt.diagonal(dim1=1, dim2=2).unflatten(1, SPACE) for blocks in (K, G))
    close(gram.tt_diag - g_tt, (9 / inside - 1) * k_tt, 1e-9)


def test_without_borders_the_objectives_of_images_agree_too():
    """1 × 1 filters have no border: objective and gradients, through pooling."""
    x = images()
    model = random_(build(x, replace(LABELS, filter_size=1)))
    twin = conv_twin(model, x)
    twin.initialised.fill_(True)
    noise = model.draw_samples(generator(2))
    terms = model.objective(noise)
    theirs = objective(twin(x), twin.likelihood, model.train_targets, noise, len(x))
    close(terms.total, theirs.total, 1e-8)
    terms.total.backward()
    theirs.total.backward()
    assert_same_gradients(model, twin, 1e-8)


# ---- the pieces ----

# ---- coordinates, lengthscales, classes as a regression ----


@pytest.mark.parametrize("divergence", ["exact", "taylor"])
@pytest.mark.parametrize("data", [rows, images])
def test_coordinates_relative_to_the_kernel_change_nothing_but_the_search(data, divergence):
    config = replace(CONFIG, divergence=divergence, relative=False)
    x, new = data(), data(seed=1)[:2]
    model = random_(build(x, config))
    twin = build(x, replace(config, relative=True))
    others = {n: v for n, v in model.state_dict().items() if "raw_factor" not in n}
    twin.load_state_dict(others, strict=False)
    twin.initialise_({n: G for n, G in model.gram_matrices().items() if n != "input"})
    close(twin.objective().total, model.objective().total, 1e-9)
    for mine, theirs in zip(vars_of(twin.predict(new)), vars_of(model.predict(new)), strict=True):
        close(mine, theirs, 1e-9)


@pytest.mark.parametrize("divergence", ["exact", "taylor", "taylor_symmetric"])
def test_an_output_relative_to_the_kernel_is_the_same_output(divergence):
    K = GramBlocks(*(random_psd(6, 0), rows(4, 6), 9 + rows(4, 1)[:, 0].square()))
    plain = random_(GPOutput(6, 3, divergence).double())
    twin = RelativeOutput(6, 3, divergence).double()
    L_K = torch.linalg.cholesky(K.ii)
    with torch.no_grad():
        twin.q_mean.copy_(torch.linalg.solve(L_K, plain.q_mean))
        S = torch.linalg.solve(L_K, plain.q_cov.factor)
        twin.q_cov.set_to_(S @ S.mT)
    (q, kl), (expected, expected_kl) = twin(K), plain(K)
    close(kl, expected_kl, 1e-9)
    for mine, theirs in zip(vars_of(q), vars_of(expected), strict=True):
        close(mine, theirs, 1e-9)
    mine, theirs = (vars_of(o.at_inducing(o.inducing(K.ii))) for o in (twin, plain))
    close(mine[0], theirs[0], 1e-9)
    close(mine[1], theirs[1], 1e-9)
    for output in (twin, plain):
        output.start_at_prior_(K.ii)
        assert abs(output(K)[1].item()) < 1e-9


def vars_of(q):
    return q.mean, q.var


def test_gram_matrices_follow_the_kernel_in_relative_coordinates():
    model = build(rows(), CONFIG)
    model.layers["layer1"].kernel.log_weight_var.data.add_(1.0)
    chain = model.inducing_chain()
    for name, state in chain.layers.items():
        close(state.ii, state.K_ii, 1e-12)
        assert abs(model.layers[name].kl(state).item()) < 1e-12


@pytest.mark.parametrize("lengthscales", ["one", "per_feature"])
@pytest.mark.parametrize("data", [rows, images])
def test_lengthscales_divide_the_features(data, lengthscales):
    x, new = data(), data(seed=1)[:2]
    model = build(x, replace(CONFIG, lengthscales=lengthscales))
    with torch.no_grad():
        model.log_lengthscales.copy_(torch.linspace(-0.5, 0.7, model.log_lengthscales.numel()))
    model.initialise_()
    ell = model.log_lengthscales.detach().exp().view(-1, *[1] * (x.ndim - 2))
    scaled = build(x / ell, CONFIG)
    scaled.train_targets.copy_(model.train_targets)
    close(model.objective().total, scaled.objective().total, 1e-10)
    close(model.predict(new).mean, scaled.predict(new / ell).mean, 1e-10)
    model.objective().total.backward()
    assert model.log_lengthscales.grad.abs().min() > 0


def test_dirichlet_targets_and_their_regression_are_those_of_gpytorch():
    gpytorch = pytest.importorskip("gpytorch")
    labels = torch.tensor([0, 1, 2, 1, 1, 0])
    targets, noise_var = dirichlet_targets(labels, 3, 0.01, torch.float64)
    theirs = gpytorch.likelihoods.DirichletClassificationLikelihood(
        labels, alpha_epsilon=0.01, dtype=torch.float64
    )
    expected = theirs.transformed_targets.mT
    close(targets, expected - expected.mean(), 1e-12)
    close(noise_var, theirs.noise.mT, 1e-12)
    x, new = rows(), rows(4, seed=1)
    model = build(x, replace(PLAIN, nu=math.inf, likelihood="dirichlet", num_classes=3))
    model.train_targets.copy_(labels)
    K = model.top_kernel().detach()
    all_points = build(torch.cat([x, new]), replace(PLAIN, nu=math.inf)).top_kernel().detach()
    q, evidence = model.predict(new), 0.0
    for c in range(3):
        S = K + noise_var[:, c].diag()
        normal = torch.distributions.MultivariateNormal(torch.zeros(6).double(), S)
        evidence += normal.log_prob(targets[:, c]).item()
        K_ti, K_tt = all_points[6:, :6], all_points[6:, 6:]
        close(q.mean[:, c], K_ti @ torch.linalg.solve(S, targets[:, c]), 1e-9)
        close(q.var[:, c], (K_tt - K_ti @ torch.linalg.solve(S, K_ti.mT)).diagonal(), 1e-9)
    assert model.objective().total.item() == pytest.approx(evidence / 6, rel=1e-9)


@pytest.mark.parametrize("name", [*KERNEL_STEPS, "linear"])
def test_kernels_of_pairs_are_those_of_one_matrix(name):
    """K_tt off its diagonal is what K_ti holds about the same points; on it is GramBlocks'."""
    kernel = random_(Linear() if name == "linear" else KERNEL_STEPS[name]()).double()
    F_i, F_t = random_features(4, (2, 3), 0)
    N = F_i.shape[1]
    G = FullBlocks(F_i @ F_i.mT / N, F_t @ F_i.mT / N, F_t @ F_t.mT / N)
    K = kernel_of_pairs(kernel, G, kernel.inducing(G.ii))
    diagonal = G.tt.diagonal(dim1=1, dim2=2)
    blocks = kernel(GramBlocks(G.ii, G.ti, diagonal))
    parts = (K.ii, K.ti, K.tt.diagonal(dim1=1, dim2=2))
    assert all(torch.equal(a, b) for a, b in zip(parts, flatten(blocks), strict=True))
    eye = torch.eye(3, dtype=torch.bool)
    for b in range(2):
        pairs = kernel.rows(G.tt[b], diagonal[b], diagonal[b])
        close(K.tt[b][~eye], pairs[~eye], 1e-13)


def test_the_linear_kernel_is_the_gram_matrix():
    gram = GramBlocks(random_psd(3, 0), torch.randn(2, 3), torch.rand(2))
    K = Linear(None, None, Jitter(0.0, 0.0))(gram)
    assert all(torch.equal(a, b) for a, b in zip(flatten(K), flatten(gram), strict=True))
    assert "linear" not in KERNELS


@pytest.mark.parametrize(("f", "stride"), [(1, 1), (3, 1), (3, 2), (5, 3), (7, 4), (9, 1)])
def test_pair_convolution_equals_loops_and_has_the_right_gradient(f, stride):
    space = (3, 4)
    K = random_psd(24, 0)
    conv = PairConvolution(space, f, stride)
    expected = reference.pair_convolution(K.numpy(), space, f, stride)
    close(conv.inducing(K), expected, 1e-13)
    m = len(expected) // 2  # the second image is new
    one = FullBlocks(K[:12, :12], K[None, 12:, :12], K[None, 12:, 12:])
    ours = conv.data(one, conv.inducing(one.ii))
    close(ours.ti[0], expected[m:, :m], 1e-13)
    close(ours.tt[0], expected[m:, m:], 1e-13)
    assert np.linalg.eigvalsh(expected)[0] > 0
    some = random_psd(8, 1).requires_grad_()
    for small in ((2, 2), (1, 4)):
        assert torch.autograd.gradcheck(PairConvolution(small, f, stride).inducing, some)


def test_pooling_is_the_mean_over_all_pairs_of_pixels():
    G = random_psd(12, 0)
    close(pool_inducing(G, 4), reference.pool_pairs(G.numpy(), 4), 1e-14)


def test_the_evidence_is_that_of_a_multivariate_normal():
    K, y, noise_var = random_psd(6, 0), rows(6, 3), torch.tensor(0.3, dtype=torch.float64)
    gp = ExactGP.condition(K, y, noise_var)
    covariance = K + noise_var * torch.eye(6, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(torch.zeros(6).double(), covariance)
    close(gp.log_evidence, normal.log_prob(y.mT).sum(), 1e-10)
    assert gp.factor.shape == (6, 6)  # one for all outputs


@both
@pytest.mark.parametrize("likelihood", ["gaussian", "categorical", "dirichlet"])
@pytest.mark.parametrize("divergence", ["exact", "taylor"])
def test_gradients_of_the_objective_are_right(data, likelihood, divergence):
    x = rows(4) if data is rows else images(2, channels=6, space=(2, 3))
    config = replace(CONFIG, likelihood=likelihood, divergence=divergence, nu=0.3)
    model = random_(build(x, config))
    noise = model.draw_samples(generator(1)) if likelihood == "categorical" else None
    names, values = zip(*model.named_parameters(), strict=True)
    call = copy.deepcopy(model)
    call.forward = lambda: call.objective(noise).total

    def total(*parameters):
        return functional_call(call, dict(zip(names, parameters, strict=True)), ())

    leaves = [value.detach().clone().requires_grad_() for value in values]
    assert torch.autograd.gradcheck(total, leaves, atol=1e-6, fast_mode=True)


@both
def test_the_joint_matrix_of_training_and_new_points_stays_positive_semidefinite(data):
    model = random_(build(data(), replace(CONFIG, num_layers=3)))
    for G in grams_of(model, data(4, seed=1)):
        for ti, tt in zip(G.ti, G.tt, strict=True):
            joint = torch.cat([torch.cat([G.ii, ti.mT], 1), torch.cat([ti, tt], 1)])
            eigenvalues = torch.linalg.eigvalsh(joint.detach())
            assert eigenvalues[0] > -1e-12 * eigenvalues[-1]


@both
def test_a_batch_equals_its_items_and_the_order_of_the_training_data_is_free(data):
    x, new = data(), data(3, seed=1)
    model = build(x)
    whole, predict = model.predict(new), model.for_prediction()
    for b in range(3):
        item = predict(new[b : b + 1])
        close(item.mean[0], whole.mean[b], 1e-12)
        close(item.var[0], whole.var[b], 1e-12)
    order = torch.randperm(len(x), generator=generator(3))
    other = FullRankConvDKM if data is images else FullRankDKM
    permuted = other(x[order], targets(x)[order], CONFIG)
    permuted.initialise_()
    close(permuted.predict(new).mean, whole.mean, 1e-9)


@both
def test_state_dict_gives_bit_equal_predictions_on_a_new_object(data):
    x, config = data(), replace(CONFIG, likelihood="categorical")
    model = random_(build(x, config))
    fresh = type(model)(torch.zeros_like(x), targets(x, config), config)
    fresh.load_state_dict(model.state_dict())
    new = data(2, seed=1)
    assert torch.equal(fresh.predict(new).mean, model.predict(new).mean)
    assert "object at" not in repr(model)


def test_training_in_float32_raises_the_objective():
    x = rows().float()
    model = FullRankDKM(x, torch.arange(6) % 2, replace(CONFIG, likelihood="categorical"))
    model.initialise_()
    draw, totals = generator(1), []
    adam = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(30):
        terms = model.objective(model.draw_samples(draw))
        adam.zero_grad()
        (-terms.total).backward()
        adam.step()
        totals.append(terms.total.item())
    assert np.mean(totals[-5:]) > np.mean(totals[:5])
    assert model.predict(x).mean.dtype == torch.float32


# ---- the deep linear model: the optimum without training ----

LINEAR = FullRankConfig(
    kernel="linear",
    weight_var=None,
    bias_var=None,
    kernel_jitter=Jitter(0.0, 0.0),
    shared_noise=True,
)
NO_NOISE = 1e-13


def linear_model(x, y, nu, num_layers, noise_var):
    model = FullRankDKM(x, y, replace(LINEAR, nu=nu, num_layers=num_layers, noise_var=noise_var))
    model.initialise_()
    model.likelihood.log_noise_var.requires_grad_(False)
    return model


def maximise_(model, seed):
    """From a random start."""
    draw = generator(seed)
    for parameter in model.layers.parameters():
        parameter.data.normal_(generator=draw)
    search = torch.optim.LBFGS(
        model.layers.parameters(),
        max_iter=150,
        tolerance_grad=1e-8,
        tolerance_change=1e-15,
        line_search_fn="strong_wolfe",
    )

    def loss():
        search.zero_grad()
        value = -model.objective().total
        value.backward()
        return value

    search.step(loss)


@pytest.mark.parametrize(
    ("C", "nu", "L", "noise_var", "scale"),
    [
        (3, 0.5, 1, NO_NOISE, 1.0),
        (5, 2.0, 3, NO_NOISE, 3.0),
        (2, 3.0, 2, NO_NOISE, 1.0),  # Y Yᵀ singular, ν > C
        (2, 0.8, 2, 0.3, 2.0),  # Y Yᵀ singular, ν < C, noise
    ],
)
def test_gradient_descent_reaches_the_deep_linear_optimum(C, nu, L, noise_var, scale):
    x, y = rows(3, 8), scale * rows(3, C, seed=1)
    if noise_var > NO_NOISE:
        x = 4 * torch.linalg.qr(x.mT).Q.mT  # G_0 = 2 I
    best = linear_model(x, y, nu, L, noise_var)
    noise_var = best.likelihood.noise_var.item() if noise_var > NO_NOISE else 0.0
    optimum = deep_linear_optimum(best.gram_matrices()["input"], y, nu, L, noise_var)
    best.initialise_(dict(zip(best.layers, optimum, strict=True)))
    terms = best.objective()
    terms.total.backward()
    for parameter in best.layers.parameters():
        assert parameter.grad.abs().max() < 1e-11
    for seed in range(3):
        model = linear_model(x, y, nu, L, noise_var or NO_NOISE)
        maximise_(model, seed)
        close(model.objective().total, terms.total, 1e-10)
        for found, expected in zip(list(model.gram_matrices().values())[1:], optimum, strict=True):
            close(found, expected, 1e-6)


def test_the_deep_linear_sequence_is_geometric():
    G_0, y = random_psd(4, 0), rows(4, 5)
    G_1, G_2, G_3 = deep_linear_optimum(G_0, y, 0.7, 3)
    ratio = torch.linalg.solve(G_0, G_1)
    close(G_2, G_1 @ ratio, 1e-10)
    close(G_3, G_2 @ ratio, 1e-10)


@pytest.mark.parametrize("lam", [300.0, 650.0, 700.0, 750.0, 2000.0])
def test_of_several_stationary_points_the_best_is_taken(lam):
    """Much noise and many layers: between λ ≈ 560 and 810 there are three, found here by a grid."""
    nu, L, C, noise_var = 1.0, 6, 1, 100.0
    a = np.exp(np.linspace(-3, 3, 200_001))
    m = a**L + noise_var
    share = -0.5 * (C * np.log(m) + lam / m) - 0.5 * nu * L * (a - np.log(a) - 1)
    assert best_root(lam, nu, L, C, noise_var) == pytest.approx(a[share.argmax()], rel=5e-5)


def test_deep_linear_models_without_an_optimum():
    eye, y = torch.eye(4, dtype=torch.float64), rows(4, 2)
    with pytest.raises(ValueError, match=r"no optimum: 2 eigenvalues .* nu = 2 is not above .* 2"):
        deep_linear_optimum(eye, y, 2.0, 2)
    with pytest.raises(ValueError, match="no multiple of the identity"):
        deep_linear_optimum(random_psd(4, 0), y, 3.0, 2, noise_var=0.1)
    with pytest.raises(ValueError, match="num_layers 1 or more"):
        deep_linear_optimum(eye, y, 1.0, 0)
    with pytest.raises(NotPSDError, match="deep_linear_optimum: the input Gram matrix"):
        deep_linear_optimum(-eye, y, 3.0, 1)
    for seed in range(40):  # in float32 an eigenvalue of 0 may come out as 1e-8
        with pytest.raises(ValueError, match="no optimum: 1 eigenvalues"):
            deep_linear_optimum(torch.eye(2), rows(2, 1, seed=seed).float(), 0.5, 2)


# ---- bad input, and cost ----


@pytest.mark.parametrize(
    ("x", "y", "changes", "error", "message"),
    [
        (
            rows()[0],
            rows(6, 2),
            {},
            ValueError,
            r"points must have shape \(points, features\), got",
        ),
        (
            rows(),
            rows(5, 2),
            {},
            ValueError,
            r"targets must have shape \(6, outputs\), got \(5, 2\)",
        ),
        (rows(), rows(6, 2)[:, 0], {}, ValueError, r"\(6, outputs\), got \(6,\)"),
        (rows() * math.nan, rows(6, 2), {}, ValueError, "must be finite, got 60 NaN"),
        (rows(), rows(6, 2) * math.inf, {}, ValueError, "targets must be finite"),
        (rows().long(), rows(6, 2), {}, TypeError, "got torch.int64"),
        (rows()[:0], rows(6, 2)[:0], {}, ValueError, "points must not be empty"),
        (rows(), torch.arange(5), {"likelihood": "categorical"}, ValueError, r"shape \(6,\)"),
        (rows(), rows(6, 1), {"likelihood": "categorical"}, TypeError, "int64 class numbers"),
        (rows(), torch.ones(6).long(), {"likelihood": "categorical"}, ValueError, "2 classes or"),
        (
            rows(),
            torch.arange(6),
            {"likelihood": "categorical", "num_classes": 3},
            ValueError,
            r"0 … 2 \(3 classes\), got values from 0 to 5",
        ),
        (rows(), rows(6, 2), {"strides": (2, 1)}, ValueError, "strides are for images"),
    ],
)
def test_bad_training_data(x, y, changes, error, message):
    with pytest.raises(error, match=message):
        FullRankDKM(x, y, replace(CONFIG, **changes))


def test_training_data_that_are_no_tensors():
    labels = replace(CONFIG, likelihood="categorical")
    for x, y, config, what in [
        ([[1.0]], rows(), CONFIG, "points"),
        (rows(), [1.0], CONFIG, "targets"),
        (rows(), [0, 1], labels, "labels"),
    ]:
        with pytest.raises(TypeError, match=f"{what} must be a torch tensor, got list"):
            check_training_data(x, y, FullRankDKM.axes, config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nu": -1.0}, "nu must be 0 or more, or inf, got -1"),
        ({"nu": math.nan}, "nu must be 0 or more"),
        ({"kernel": "cubic"}, r"unknown kernel 'cubic'; known are .*linear"),
        ({"noise_var": 0.0}, "noise_var must be positive, got 0"),
        ({"filter_size": 2}, "odd, to have a centre, got 2"),
        ({"strides": (2,)}, r"each of 2 layers, got \(2,\)"),
        ({"num_layers": -1}, "num_layers must be 0 or more"),
        ({"num_classes": 1}, "num_classes must be 2 or more"),
    ],
)
def test_configurations_that_cannot_be_built(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)


def test_what_is_missing_is_named():
    x = rows()
    model = FullRankDKM(x, targets(x), CONFIG)
    with pytest.raises(RuntimeError, match=r"call model.initialise_\(\)"):
        model.objective()
    with pytest.raises(ValueError, match=r"pass model.draw_samples\(generator\)"):
        build(x, replace(CONFIG, likelihood="categorical")).objective()
    model.initialise_()
    with pytest.raises(ValueError, match=r"points must have shape \(batch, 10\), got \(6, 9\)"):
        model.predict(x[:, :9])
    twice = torch.cat([x, x])
    model = FullRankDKM(twice, targets(twice), replace(PLAIN, nu=1.0))
    with pytest.raises(NotPSDError, match=r"^layer1: K_ii \(12×12, float64\)"):
        model.initialise_()


@pytest.mark.parametrize(("nu", "name"), [(1.0, "layer3"), (math.inf, "layer1")])
def test_start_values_without_a_matrix_to_start_are_refused(nu, name):
    model = build(rows(), replace(CONFIG, nu=nu))
    with pytest.raises(ValueError, match=rf"grams may be given for .*got \['{name}'\]"):
        model.initialise_({name: random_psd(6, 0)})


def test_negative_variances_name_the_layer_or_are_clamped():
    x = rows()
    strict = replace(CONFIG, variance_check=VarianceCheck(threshold=1e9))
    with torch.no_grad(), pytest.raises(NegativeVarianceError, match=r"^layer1: 6 of 6 variances"):
        build(x, strict).predict(x)
    lenient = build(x, replace(CONFIG, variance_check=VarianceCheck(clamp=True)))
    close(lenient.predict(x).var, build(x).predict(x).var, 1e-14)


def test_variances_of_new_data_that_are_negative_count_as_zero(monkeypatch):
    x, condition = rows(), full_rank_layer.condition_full

    def negative(K, conditional):
        G = condition(K, conditional)
        return FullBlocks(G.ii, G.ti, G.tt - 100 * torch.eye(1, dtype=G.tt.dtype))

    monkeypatch.setattr(full_rank_layer, "condition_full", negative)
    with torch.no_grad():
        with pytest.raises(NegativeVarianceError, match=r"^layer1: 6 of 6 variances"):
            build(x).predict(x)
        model = build(x, replace(CONFIG, variance_check=VarianceCheck(clamp=True)))
        chain = model.inducing_chain()
        G = model.layers["layer1"].data(model.first_gram(x, chain), chain.layers["layer1"])
    assert (G.tt.diagonal(dim1=1, dim2=2) == 0).all()


def test_models_that_are_too_large_are_refused_with_the_remedy():
    x = images(2, channels=1, space=(8, 8))
    need = f"{estimate(CONFIG, 2, (8, 8)).bytes / 1e9:.3g}"
    sizes = r"P = 2 .* S = 64 .* 128 × 128"
    with pytest.raises(MemoryError, match=rf"{sizes} .* {need} GB, but 1e-05 GB are allowed: take"):
        check_memory(CONFIG, x, num_outputs=1, memory=10_000)
    huge = torch.zeros(1, 1, dtype=torch.float64).expand(300_000, 1)
    with pytest.raises(MemoryError, match=r"GB are free: .* DenseDKM and ConvDKM"):
        check_memory(CONFIG, huge, num_outputs=1)


def test_the_cost_of_pixels_strides_and_the_nngp():
    one = estimate(CONFIG, 100)
    pixels, strided = (
        estimate(replace(CONFIG, strides=strides), 10, (4, 4)) for strides in ((), (2, 1))
    )
    assert strided.bytes < one.bytes < pixels.bytes
    fixed = estimate(replace(CONFIG, nu=math.inf), 10, (4, 4))
    assert fixed.flops < pixels.flops / 100
    assert fixed.bytes < pixels.bytes


def test_classes_are_counted_and_noises_are_one_for_each_target_by_default():
    x = torch.randn(6, 2, dtype=torch.float64, generator=generator())
    labels = torch.tensor([0, 2, 1, 2, 0, 1])
    for likelihood in ("categorical", "dirichlet"):
        assert FullRankDKM(x, labels, FullRankConfig(likelihood=likelihood)).num_outputs == 3
        four = FullRankConfig(likelihood=likelihood, num_classes=4)
        assert FullRankDKM(x, labels, four).num_outputs == 4
    likelihood = FullRankDKM(x, x.sin(), FullRankConfig()).likelihood
    assert likelihood.noise_var.shape == (2,)
