"""Whole models: start-up, statistics, state, limits and bad input."""

import copy
import math
import re
import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import gpytorch
import numpy as np
import pytest
import torch

from gramian import (
    SKR,
    ConvDKM,
    ConvDKMConfig,
    DenseDKM,
    DenseDKMConfig,
    FullRankConfig,
    NegativeVarianceError,
    NetworkConfig,
    NormChoice,
    NotPSDError,
    VarianceCheck,
    objective,
)
from gramian.nn.checks import check_features
from gramian.nn.layers import ResidualBlock
from gramian.nn.setting_checks import check_choices
from gramian.nn.steps.kernels import KERNELS, Jitter
from gramian.train.config import TrainConfig
from tests import reference
from tests.samples import flatten, generator, random_

SMALL = ConvDKMConfig(
    image_shape=(2, 8, 6),
    num_outputs=3,
    num_inducing=(6, 8),
    blocks_per_stage=2,
    strides=(1, 2),
    num_samples=20,
)
DENSE = DenseDKMConfig(num_features=3, num_outputs=2, num_inducing=7, num_layers=2)


def images(n=9, dtype=torch.float64, seed=0):
    return torch.randn(n, 2, 8, 6, generator=generator(seed), dtype=dtype)


def rows(n=12, dtype=torch.float64, seed=0):
    return torch.randn(n, 3, generator=generator(seed), dtype=dtype)


def conv_model(config=SMALL, dtype=torch.float64) -> ConvDKM:
    model = ConvDKM.from_config(config).to(dtype)
    model.initialise_(images(dtype=dtype), generator(1))
    return model


def dense_model(config=DENSE, dtype=torch.float64) -> DenseDKM:
    model = DenseDKM.from_config(config).to(dtype)
    model.initialise_(rows(dtype=dtype), generator(1))
    return model


both = pytest.mark.parametrize(
    ("build", "data"), [(conv_model, images), (dense_model, rows)], ids=["conv", "dense"]
)


# ---- one result, by name ----


def test_the_result_names_every_layer():
    model = conv_model()
    result = model(images(), model.draw_noise(generator()))
    assert list(result.kl) == [
        "stem.gram",
        *(
            f"stage{stage}_block{block}.layer{layer}.gram"
            for stage in (1, 2)
            for block in (1, 2)
            for layer in (1, 2)
        ),
        "output",
    ]
    assert result.marginals.mean.shape == (9, 3)
    assert result.marginals.var.shape == (9, 1)
    torch.testing.assert_close(result.total_kl, sum(result.kl.values()))
    assert set(result.seen) >= {"norm", "stem.norm", "stage2_block1.shortcut.norm", "stem.gram"}


@both
def test_the_same_seed_gives_the_same_model_and_another_seed_another(build, data):
    first, second = build(), build()
    other = copy.deepcopy(first)
    other.initialise_(data(), generator(2))
    noise = first.draw_noise(generator(3))
    means = [m(data(), noise).marginals.mean for m in (first, second, other)]
    assert torch.equal(means[0], means[1])
    assert not torch.allclose(means[0], means[2])


@both
def test_state_dict_gives_bit_equal_predictions_on_a_new_object(build, data):
    model = build().eval()
    fresh = type(model).from_config(SMALL if build is conv_model else DENSE).double().eval()
    fresh.load_state_dict(model.state_dict())
    a, b = fresh(data()).marginals, model(data()).marginals
    assert torch.equal(a.mean, b.mean)
    assert torch.equal(a.var, b.var)


@both
def test_a_forward_pass_before_initialise_raises(build, data):
    model = type(build()).from_config(SMALL if build is conv_model else DENSE).double()
    with pytest.raises(RuntimeError, match=r"call model.initialise_\(data, generator\)"):
        model(data())


# ---- a prediction does not depend on its batch ----


@both
def test_a_batch_equals_its_items_under_running_statistics(build, data):
    model = build().eval()
    x = data()
    whole = model(x).marginals
    for b in range(len(x)):
        item = model(x[b : b + 1]).marginals
        torch.testing.assert_close(item.mean[0], whole.mean[b], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(item.var[0], whole.var[b], rtol=1e-10, atol=1e-10)


def test_batch_statistics_are_the_published_behaviour_and_do_depend_on_the_batch():
    model = conv_model(replace(SMALL, norm=NormChoice(statistics="batch"))).eval()
    x = images()
    alone, together = model(x[:1]).marginals.mean[0], model(x).marginals.mean[0]
    assert (alone - together).abs().max() > 1e-4


def test_training_moves_the_running_means_and_evaluation_does_not():
    model = conv_model()
    norm = model.layers["stem"].norm
    before = norm.running_mean.clone()
    model(images(seed=5), model.draw_noise(generator()))
    after = norm.running_mean.clone()
    assert not torch.equal(before, after)
    model.eval()(images(seed=6))
    assert torch.equal(norm.running_mean, after)


def test_estimated_statistics_make_running_and_batch_evaluation_equal():
    model = conv_model()
    x = images()
    model.estimate_statistics_([x])
    assert model.training
    running = model.eval()(x).marginals
    for module in model.modules():
        if hasattr(module, "choice"):
            module.choice = replace(module.choice, statistics="batch")
    batch = model(x).marginals
    torch.testing.assert_close(running.mean, batch.mean, rtol=1e-9, atol=1e-9)


def test_estimated_statistics_weight_data_and_not_batches():
    """The mean over all rows, however they are split, where no other normalisation is before."""
    config = replace(DENSE, num_layers=0, norm=NormChoice(), kernel="normalized_gaussian")
    model = DenseDKM.from_config(config).double()
    x = torch.randn(257, config.num_features, generator=generator(1), dtype=torch.float64)
    x[-1] *= 30
    model.initialise_(x, generator())
    found = []
    for parts in ([257], [256, 1], [100, 3, 154]):
        order = torch.randperm(257, generator=generator(len(parts)))
        model.estimate_statistics_(x[order].split(parts))
        found.append(model.norm.running_mean.clone())
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


# ---- limits with a known answer ----


def test_no_gram_layer_is_a_sparse_variational_gp():
    """GPyTorch's SVGP with the same kernel, inducing points and q(u): mean, variance and KL."""
    config = replace(
        DENSE,
        num_layers=0,
        weight_var=None,
        bias_var=None,
        kernel_jitter=Jitter(0.0, 0.0),
        divergence="exact",
    )
    model = random_(dense_model(config)).eval()
    points, P = model.inputs.inducing_points.detach(), config.num_inducing
    L_A = model.output.q_cov.factor.detach()

    class SVGP(gpytorch.models.ApproximateGP):
        def __init__(self):
            q = gpytorch.variational.CholeskyVariationalDistribution(P)
            super().__init__(
                gpytorch.variational.UnwhitenedVariationalStrategy(
                    self, points, q, learn_inducing_locations=False, jitter_val=0.0
                )
            )
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.RBFKernel()

        def forward(self, x):
            covariance = self.covar_module(x)
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), covariance)

    x = rows(5, seed=3)
    result = model(x)
    kl = torch.zeros((), dtype=torch.float64)
    with (
        warnings.catch_warnings(),
        torch.no_grad(),
        gpytorch.settings.fast_computations(False, False, False),
    ):
        warnings.simplefilter("ignore")
        for c in range(config.num_outputs):
            svgp = SVGP().double().eval()
            svgp.covar_module.lengthscale = math.sqrt(config.num_features)
            q = svgp.variational_strategy._variational_distribution
            q.variational_mean.copy_(model.output.q_mean[:, c])
            q.chol_variational_covar.copy_(L_A)
            svgp.variational_strategy.variational_params_initialized.fill_(1)
            f = svgp(x)
            torch.testing.assert_close(result.marginals.mean[:, c], f.mean, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(result.marginals.var[:, 0], f.variance, rtol=1e-6, atol=1e-6)
            # GPyTorch's own kl_divergence() adds 1e-3 to the prior's diagonal; ours does not.
            prior = svgp.forward(points)
            q = svgp.variational_strategy.variational_distribution
            kl += torch.distributions.kl_divergence(q, prior)
    torch.testing.assert_close(result.kl["output"].detach(), kl, rtol=1e-6, atol=1e-6)


def test_inducing_points_at_the_data_give_the_exact_gp():
    """With the optimal q(u) in closed form, predictions are those of exact GP regression."""
    x = rows(8)
    y = torch.sin(x.sum(1, keepdim=True))
    noise_var = 0.2
    config = DenseDKMConfig(
        num_features=3,
        num_outputs=1,
        num_inducing=8,
        num_layers=0,
        likelihood="gaussian",
        noise_var=noise_var,
        divergence="exact",
    )
    model = DenseDKM.from_config(config).double()
    model.initialise_(x, generator(), inducing=x)
    model.eval()
    K = model.kernel(model.inputs(x))
    noisy = K.ii + noise_var * torch.eye(8, dtype=torch.float64)
    with torch.no_grad():
        model.output.q_mean.copy_(K.ii @ torch.linalg.solve(noisy, y))
        model.output.q_cov.set_to_(K.ii - K.ii @ torch.linalg.solve(noisy, K.ii))
    new = rows(5, seed=4)
    q = model(new).marginals
    K_new = model.kernel(model.inputs(new))
    mean = K_new.ti @ torch.linalg.solve(noisy, y)
    var = K_new.tt_diag - (K_new.ti * torch.linalg.solve(noisy, K_new.ti.mT).mT).sum(1)
    torch.testing.assert_close(q.mean, mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(q.var[:, 0], var, rtol=1e-7, atol=1e-7)


def variances(kernel) -> tuple[float, float]:
    return kernel.log_weight_var.exp().item(), kernel.log_bias_var.exp().item()


def assert_top_blocks(model, x, expected) -> None:
    chain = model.inducing_chain({})
    gram = model.first_gram(x, chain)
    for name, layer in model.layers.items():
        gram, _ = layer.data(gram, chain.layers[name])
    top, _ = model.top(gram, chain)
    for ours, theirs in zip(flatten(top), expected, strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
def test_infinite_nu_is_the_nngp_recursion_dense(kernel):
    config = replace(DENSE, kernel=kernel, nu=math.inf, skr=SKR.off())
    model = dense_model(config)
    assert not any("inducing_gram" in name for name, _ in model.named_parameters())
    x = rows(5, seed=3)
    blocks = reference.dense_input(model.inputs.inducing_points.detach().numpy(), x.numpy())
    for _ in range(config.num_layers + 1):
        blocks = reference.kernel(kernel, blocks, *variances(model.kernel))
    assert_top_blocks(model, x, blocks)


@pytest.mark.parametrize("kernel", ["normalized_gaussian", "arc_cosine"])
def test_infinite_nu_is_the_nngp_recursion_convolutional(kernel):
    """Kernel, convolution, norm and skip as loops, with no Gram layer between them."""
    config = replace(
        SMALL,
        kernel=kernel,
        nu=math.inf,
        skr=SKR.off(),
        whitening=False,
        norm=NormChoice(statistics="batch"),
        blocks_per_stage=1,
        residual_weights=(0.3, 0.7),
    )
    model = conv_model(config)
    x = images(3, seed=3)

    def numpy(parameter):
        return parameter.detach().numpy()

    def run(layer, blocks):
        phi = reference.kernel(kernel, blocks, *variances(layer.kernel))
        K = reference.convolution(phi, numpy(layer.conv.mixing), layer.conv.stride)
        return reference.global_norm(K)

    blocks = reference.patch_input(numpy(model.inputs.inducing_patches), x.numpy())
    for layer in model.layers.values():
        if isinstance(layer, ResidualBlock):
            main = run(layer.layer2, run(layer.layer1, blocks))
            skip = blocks
            if layer.shortcut is not None:
                conv = layer.shortcut.conv
                skip = reference.convolution(blocks, numpy(conv.mixing), conv.stride)
                skip = reference.global_norm(skip)
            blocks = reference.average(skip, main, (0.3, 0.7))
        else:
            blocks = run(layer, blocks)
    pooled = reference.spatial_mean(blocks)
    top = reference.kernel(kernel, pooled, *variances(model.kernel))
    assert_top_blocks(model, x, reference.global_norm(top))


def test_mean_residual_weights_give_every_branch_the_same_share():
    """Where no shortcut mixes, G is the mean of the stem's and of every main branch's."""
    config = replace(
        SMALL,
        num_inducing=(4,),
        strides=(1,),
        blocks_per_stage=3,
        residual_weights="mean",
        whitening=False,
    )
    model = conv_model(config).eval()
    chain = model.inducing_chain({})
    gram = model.first_gram(images(2, seed=1), chain)
    branches = []
    for name, layer in model.layers.items():
        state = chain.layers[name]
        if isinstance(layer, ResidualBlock):
            middle, _ = layer.layer1.data(gram, state.first)
            branches.append(layer.layer2.data(middle, state.second)[0])
        gram, _ = layer.data(gram, state)
        if not isinstance(layer, ResidualBlock):
            branches.append(gram)
    assert len(branches) == 4
    for whole, *parts in zip(flatten(gram), *map(flatten, branches), strict=True):
        torch.testing.assert_close(whole, sum(parts) / 4)


def test_finite_nu_started_at_the_kernel_is_the_nngp_too():
    """G = K everywhere: the start of training is the end of ν → ∞."""
    off = replace(DENSE, skr=SKR.off())
    limit = dense_model(replace(off, nu=math.inf)).eval()
    start = dense_model(off).eval()
    limit.output.load_state_dict(start.output.state_dict())
    x = rows(5, seed=3)
    torch.testing.assert_close(start(x).marginals.mean, limit(x).marginals.mean)
    assert start(x).kl["layer2.gram"].abs() < 1e-8


# ---- variants and precision ----


@pytest.mark.parametrize("pooling", ["mean", "nystrom", "mean_mixing", "nystrom_mixing"])
@pytest.mark.parametrize("data", ["global", "location", "image", "local", "none"])
def test_every_choice_of_pooling_and_norm_trains(pooling, data):
    scale = "location" if data == "location" else "global"
    config = replace(SMALL, pooling=pooling, norm=NormChoice(data=data, scale_data=scale))
    model = conv_model(config)
    draw = generator(0)
    result = model(images(), model.draw_noise(draw))
    y = torch.arange(9) % 3
    terms = objective(result, model.likelihood, y, model.draw_samples(9, draw), 9)
    terms.loss.backward()
    assert terms.total.isfinite()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_trains_in_float32(kernel):
    model = dense_model(replace(DENSE, kernel=kernel), torch.float32)
    draw = generator(0)
    adam = torch.optim.Adam(model.parameters(), 0.01)
    x, y = rows(dtype=torch.float32), torch.arange(12) % 2
    totals = []
    for _ in range(30):
        result = model(x, model.draw_noise(draw))
        terms = objective(result, model.likelihood, y, model.draw_samples(12, draw), 12)
        adam.zero_grad()
        terms.loss.backward()
        adam.step()
        totals.append(terms.total.item())
    assert np.mean(totals[-5:]) > np.mean(totals[:5])


@both
def test_float32_predictions_are_close_to_float64(build, data):
    """Three digits through the whole model, at the published jitters."""
    model = build().eval()
    exact = model(data()).marginals
    single = model.float()(data().float()).marginals
    torch.testing.assert_close(single.mean.double(), exact.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(single.var.double(), exact.var, rtol=1e-3, atol=1e-3)


def test_output_can_start_at_the_kernel():
    model = conv_model(replace(SMALL, output_start="kernel", skr=SKR.off()))
    assert model(images()).kl["output"] < conv_model(SMALL).eval()(images()).kl["output"]
    top = model.inducing_chain({}).top_ii
    torch.testing.assert_close(model.output.q_cov.matrix, top)


def test_inducing_patches_can_come_from_whitened_images():
    """Patches are then patches of the whitened images, not of the images."""
    x = images()
    for whiten in (False, True):
        model = conv_model(replace(SMALL, whiten_inducing=whiten))
        source = model.whitening(x) if whiten else x
        windows = source.unfold(2, 3, 1).unfold(3, 3, 1).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
        distance = (model.inputs.inducing_patches[0] - windows).abs().flatten(1).amax(1).min()
        assert distance < 1e-12


def test_one_channel_and_odd_sizes():
    config = replace(SMALL, image_shape=(1, 7, 5), norm=NormChoice(data="location"))
    model = ConvDKM.from_config(config)
    x = torch.randn(5, 1, 7, 5, generator=generator(0))
    model.initialise_(x, generator(0))
    assert model.eval()(x).marginals.mean.shape == (5, 3)


def test_models_print_and_copy():
    model = conv_model().eval()
    assert "object at" not in repr(model)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(images()).marginals.mean, model(images()).marginals.mean)


@both
def test_recomputed_activations_give_identical_gradients(build, data):
    x, gradients = data(), []
    for recompute in (False, True):
        model = build()
        model.recomputed = frozenset(model.layers if recompute else ())
        result = model(x, model.draw_noise(generator(0)))
        (result.marginals.mean.sum() + result.marginals.var.sum() + result.total_kl).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


# ---- bad input ----


@pytest.mark.parametrize(
    ("settings", "name", "message"),
    [
        (DENSE, "unexplained", "must be kept or dropped"),
        (DENSE, "output_start", "must be random, kernel or prior"),
        (DENSE, "divergence", "must be"),
        (DENSE, "lengthscales", "must be"),
        (SMALL, "pooling", "must be mean, nystrom, mean_mixing or nystrom_mixing"),
        (SMALL, "whitening", "must be true, false, mirrored or patches"),
        (SMALL, "residual_weights", "must be mean"),
        (SMALL, "mixing_start", "must be"),
        (SMALL, "inducing_start", "must be"),
        (NormChoice(), "statistics", "must be running or batch"),
        (NetworkConfig(), "estimator", "must be"),
        (FullRankConfig(), "likelihood", "must be gaussian, categorical or dirichlet"),
        (TrainConfig(), "optimiser", "must be adam, adamw, sgd or muon"),
    ],
)
def test_a_misspelt_word_is_refused(settings, name, message):
    misspelt = copy.copy(settings)
    object.__setattr__(misspelt, name, "kepr")  # with type checks off, as users have them
    with pytest.raises(ValueError, match=f"{name} {message}.*, got 'kepr'"):
        misspelt.__post_init__()


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (images()[0], ValueError, r"shape \(batch, 2, 8, 6\), got \(2, 8, 6\)"),
        (images()[:, :1], ValueError, r"shape \(batch, 2, 8, 6\), got \(9, 1, 8, 6\)"),
        (images()[..., :5], ValueError, r"shape \(batch, 2, 8, 6\), got \(9, 2, 8, 5\)"),
        (images()[:0], ValueError, "images must not be empty"),
        (images().float(), TypeError, "model's dtype torch.float64, got torch.float32"),
        (images().long(), TypeError, "got torch.int64"),
        (images() * math.nan, ValueError, "must be finite, got 864 NaN or infinite"),
        (images() / 0, ValueError, "must be finite"),
    ],
)
def test_bad_images(x, error, message):
    model = conv_model().eval()
    with pytest.raises(error, match=message):
        model(x)
    with pytest.raises(error, match=message):
        model.initialise_(x, generator())


def test_data_that_are_no_tensor():
    with pytest.raises(TypeError, match="must be a torch tensor, got list"):
        check_features([1.0], ("n",), torch.float32, "data")


def test_bad_noise():
    model = conv_model()
    with pytest.raises(ValueError, match="training with SKR needs noise"):
        model(images())
    with pytest.raises(ValueError, match=r"no Gram layer of this model: \['steam.gram'\]"):
        model(images(), {"steam.gram": torch.zeros(6, 2, dtype=torch.float64)})


def test_more_inducing_points_than_patches():
    model = ConvDKM.from_config(replace(SMALL, num_inducing=(1000, 8))).double()
    with pytest.raises(ValueError, match=r"1000 inducing points .* only 216 3×3 patches"):
        model.initialise_(images(), generator())


def test_configurations_that_cannot_be_built():
    with pytest.raises(ValueError, match="one stride per stage: 2 stages"):
        replace(SMALL, strides=(2,))
    with pytest.raises(ValueError, match="num_inducing must be positive"):
        replace(SMALL, num_inducing=(4, 0))
    with pytest.raises(ValueError, match="num_outputs must be 2 or more"):
        replace(SMALL, num_outputs=1)
    with pytest.raises(ValueError, match=r"unknown kernel 'linear'; known are arc_cosine"):
        replace(DENSE, kernel="linear")
    with pytest.raises(ValueError, match="must be positive"):
        replace(DENSE, num_inducing=0)
    with pytest.raises(ValueError, match="residual_weights"):
        ConvDKMConfig(residual_weights=(0.0, 0.0))
    with pytest.raises(ValueError, match="residual_weights"):
        ConvDKM.from_config(replace(SMALL, residual_weights=(-0.5, 1.5)))


def test_numerical_errors_name_the_layer():
    model = conv_model().eval()
    with torch.no_grad():
        model.layers["stage1_block2"].layer1.conv.raw_mixing.zero_()
    with pytest.raises(NotPSDError, match=r"^stage1_block2\.layer1: K_ii \(6×6, float64\)"):
        model(images())
    model = ConvDKM.from_config(replace(SMALL, variance_check=VarianceCheck(threshold=1e9)))
    with pytest.raises(NegativeVarianceError, match=r"^stem: 432 of 432 variances"):
        model.double().initialise_(images(), generator())


def test_one_layer_can_be_in_evaluation_mode_alone():
    """A layer that is kept as it is needs no noise, whatever the layers of its size do."""
    model = conv_model().train()
    path = "stage1_block1.layer1.gram"
    model.layers.get_submodule(path).eval()
    noise = model.draw_noise(generator(1))
    assert path not in noise
    assert noise
    result = model(images(), noise)
    result.total_kl.backward()
    assert result.marginals.mean.isfinite().all()


@dataclass
class SomeSettings:
    count: int
    rate: float | None
    sizes: tuple[int, ...]
    jitter: Jitter
    word: Literal["a", "b"]
    anything: Any = None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", 1.5, "count must be an integer, got 1.5"),
        ("count", "a", "count must be an integer, got 'a'"),
        ("count", True, "count must be an integer, got True"),
        ("rate", "fast", "rate must be a number, got 'fast'"),
        ("sizes", 4, "sizes must be a tuple, got 4"),
        ("jitter", 0.1, "jitter must be a Jitter, got 0.1"),
        ("word", "c", "word must be a or b, got 'c'"),
    ],
)
def test_settings_of_another_type_are_refused_by_name(name, value, message):
    right = {"count": 3, "rate": 1, "sizes": (1, 2), "jitter": Jitter(), "word": "a"}
    check_choices(SomeSettings(**right))
    check_choices(SomeSettings(**right | {"count": np.int64(3), "rate": None, "sizes": [1]}))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_choices(SomeSettings(**right | {name: value}))
