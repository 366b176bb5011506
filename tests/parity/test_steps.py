"""Every single layer against the published implementation: outputs and gradients."""

import re

import pytest
import torch

from gramian import SKR, NormChoice
from gramian.nn.steps.conv import KernelConv
from gramian.nn.steps.gram_layer import GramLayer
from gramian.nn.steps.inputs import DenseInput, PatchInput
from gramian.nn.steps.kernels import KERNELS, Jitter
from gramian.nn.steps.norm import GramNorm
from gramian.nn.steps.pooling import NystromMean, SpatialMean
from gramian.nn.steps.whitening import ZCA
from tests.parity.fixture import (
    FOLDER,
    LAYER,
    assert_blocks_close,
    assert_close,
    assert_gradients,
    blocks,
    check_step,
    functional,
    load,
    names,
    set_parameters,
)


@pytest.mark.parametrize("name", names("kernel_"))
def test_kernel(name):
    arrays = load(name)
    kind = {
        "normgauss": "normalized_gaussian",
        "arccos": "arc_cosine",
        "sqexp": "squared_exponential",
    }[name.split("_")[1]]
    jitter = Jitter(arrays["mult_eps"].item(), arrays["abs_eps"].item())
    start = 1.0 if "param_log_weight_var" in arrays else None
    kernel = KERNELS[kind](start, start, jitter).double()
    parameters = {f"param_{key}": value for key, value in kernel.named_parameters()}
    check_step(kernel, parameters, arrays)


@pytest.mark.parametrize("name", names("convmixup_"))
def test_conv(name):
    arrays = load(name)
    P_out, P_in, f, _ = arrays["param_C_latent"].shape
    assert arrays["filter_size"] == f
    conv = KernelConv(P_in, P_out, f, int(arrays["stride"])).double()
    check_step(conv, {"param_C_latent": conv.raw_mixing}, arrays)


@pytest.mark.parametrize("name", names("gram_"))
def test_gram_layer(name):
    arrays = load(name)
    _, skr_mode, mode, kind = name.split("_")
    jitter = arrays["gram_jitter"].item()
    skr = {
        "noskr": lambda: SKR.off(),
        "skr": lambda: SKR(1 / arrays["ncol_div"].item(), jitter),
        "jitteronly": lambda: SKR(None, jitter),
    }[skr_mode]()
    divergence = {"taylor": "taylor", "true": "exact"}[kind]
    P = len(arrays["in_ii"])
    layer = GramLayer(P, arrays["nu"].item(), divergence, skr).double().train(mode == "train")
    assert layer.inducing_gram is not None
    V = layer.inducing_gram.raw_factor
    set_parameters({V: arrays["param_V"]})
    assert_close(layer.inducing_gram.factor, arrays["chol_G"], LAYER, "chol_G")
    assert_close(layer.inducing_gram.matrix, arrays["G"], LAYER, "G")

    K = blocks(arrays, "in_")
    gram, kl = layer(K, arrays.get("noise"))
    assert_blocks_close(gram, arrays, "out_")
    assert_close(-kl, arrays["objective"], LAYER, "objective")
    assert_gradients(functional(gram, arrays), K, {"param_V": V}, arrays)
    assert_gradients(-kl, K, {"param_V": V}, arrays, "grad_objective_")
    if kind == "taylor":
        assert_close(4 * kl / layer.nu, arrays["frobenius_sq"], LAYER, "frobenius_sq")
    if skr.samples:
        assert skr.gamma(P) == arrays["gamma"]

    layer.set_to_(K.ii.detach())
    lower = arrays["param_V_init_from_in_ii"].tril()
    assert_close(V.tril(), lower, LAYER, "start value of V")


@pytest.mark.parametrize("name", names("gram_skr_eval_taylor"))
def test_symmetric_taylor_is_the_trace_of_the_square(name):
    arrays = load(name)
    P = len(arrays["in_ii"])
    for divergence, key, factor in [
        ("taylor_symmetric", "trace_of_square", 4.0),
        ("exact", "true_kl_for_comparison", 1.0),
    ]:
        layer = GramLayer(P, 1.0, divergence, SKR.off()).double()
        set_parameters({layer.inducing_gram.raw_factor: arrays["param_V"]})
        _, kl = layer(blocks(arrays, "in_"))
        assert_close(factor * kl, arrays[key], LAYER, key)


@pytest.mark.parametrize("name", names("norm_"))
def test_norm(name):
    arrays = load(name)
    match = re.fullmatch(r"norm_i-(\w+)_t-(\w+)_si-(\w+)_st-(\w+)_(spatial|flat)", name)
    assert match is not None
    choice = NormChoice(*match.groups()[:4], statistics="batch")
    norm = GramNorm(len(arrays["in_ii"]), tuple(arrays["in_t"].shape[1:]), choice).double()
    parameters = {
        "param_log_scale_i": norm.log_scale_inducing,
        "param_log_scale_t": norm.log_scale_data,
    }
    present = {key: value for key, value in parameters.items() if value is not None}
    assert set(present) == {key for key in arrays if key.startswith("param_")}
    for training in (True, False):
        check_step(norm.train(training), present, arrays)


@pytest.mark.parametrize("name", [n for n in names("pool_") if n != "pool_vs_algorithm1"])
def test_pooling(name):
    arrays = load(name)
    S, P_in = arrays["in_t"][0].numel(), len(arrays["in_ii"])
    P_out = len(arrays["out_ii"])
    pooling = {
        "pool_bfc": lambda: SpatialMean(),
        "pool_gap": lambda: NystromMean(),
        "pool_bfc_mixup": lambda: SpatialMean((P_out, S, P_in)),
        "pool_gap_mixup": lambda: NystromMean((P_out, P_in)),
    }[name]().double()
    parameters = {}
    if pooling.raw_mixing is not None:
        parameters["param_C_latent"] = pooling.raw_mixing
    check_step(pooling, parameters, arrays)


@pytest.mark.parametrize("case", ["span", "nospan"])
def test_pooling_against_algorithm_1(case):
    arrays = load("pool_vs_algorithm1")
    gram = blocks(arrays, f"{case}_in_")
    mean, nystrom = SpatialMean()(gram), NystromMean()(gram)
    assert_close(mean.tt_diag, arrays[f"{case}_bfc_t"], LAYER, "mean of the diagonal")
    assert_close(nystrom.tt_diag, arrays[f"{case}_gap_t"], LAYER, "Nyström mean")
    algorithm_1 = arrays[f"{case}_algorithm1_tt_diag"]
    for pooled in (mean, nystrom):
        assert_close(pooled.ti, arrays[f"{case}_algorithm1_ti"], LAYER, "pooled ti")
    if case == "span":
        assert_close(nystrom.tt_diag, algorithm_1, LAYER, "Nyström mean = Algorithm 1")
    else:
        assert (nystrom.tt_diag - algorithm_1).abs().max() > 1e-3 * algorithm_1.abs().max()
    assert (mean.tt_diag > algorithm_1).all()


def _check_input(layer, inducing, data, out, arrays, gradient_names):
    assert_blocks_close(out, arrays, "out_")
    scalar = functional(out, arrays)
    assert_close(scalar, arrays["functional"], LAYER, "functional")
    gradients = torch.autograd.grad(scalar, [inducing, data])
    for name, gradient in zip(gradient_names, gradients, strict=True):
        assert_close(gradient, arrays[name], LAYER, name)


def test_patch_input():
    arrays = load("input_conv")
    P, channels, f, _ = arrays["patches_nchw"].shape
    layer = PatchInput(P, channels, f).double()
    layer.set_inducing_(arrays["patches_nchw"])
    images = arrays["images_nchw"].requires_grad_()
    grads = ["grad_patches_nchw", "grad_images_nchw"]
    _check_input(layer, layer.inducing_patches, images, layer(images), arrays, grads)


def test_dense_input():
    arrays = load("input_dense")
    layer = DenseInput(*arrays["x_ind"].shape).double()
    layer.set_inducing_(arrays["x_ind"])
    x = arrays["x"].requires_grad_()
    grads = ["grad_x_ind", "grad_x"]
    _check_input(layer, layer.inducing_points, x, layer(x), arrays, grads)


def test_whitening():
    arrays = load("zca")
    images = arrays["fit_images_nchw"]
    zca = ZCA(tuple(images.shape[1:]), arrays["epsilon"].item()).double()
    zca.fit_(images)
    for buffer, key in {
        "channel_mean": "channel_mean",
        "channel_std": "channel_std",
        "matrix": "W",
        "white_mean": "white_channel_mean",
        "white_std": "white_channel_std",
    }.items():
        scale = 1e-9 if key == "white_channel_mean" else None  # a mean that is nearly zero
        actual, expected = getattr(zca, buffer), arrays[key]
        if scale is None:
            assert_close(actual, expected, LAYER, key)
        else:
            torch.testing.assert_close(actual, expected, rtol=LAYER, atol=scale)
    assert_close(zca(images), arrays["out_fit_images"], LAYER, "fitted images")
    assert_close(zca(arrays["apply_images_nchw"]), arrays["out_apply_images"], LAYER, "new images")


def test_every_fixture_is_compared():
    """A new fixture file must not lie unread."""
    known = ("kernel_", "convmixup_", "gram_", "norm_", "pool_", "output_", "residual_unit_")
    single = {"input_conv", "input_dense", "zca", "resdkm20", "sine_toy"}
    unread = [
        path.stem
        for path in FOLDER.glob("*.npz")
        if path.stem not in single and not path.stem.startswith(known)
    ]
    assert not unread
    assert len(list(FOLDER.glob("*.npz"))) >= 43
