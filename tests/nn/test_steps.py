"""Steps against NumPy loops, and what is special about each."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import avg_pool2d

from gramian import SKR, Bandwidth, ConvDKMConfig, GramBlocks, NormChoice, VarianceCheck
from gramian.gram.fast import windows
from gramian.gram.fast.windows import window_mean
from gramian.nn.layers import DKMLayer
from gramian.nn.steps.centre import FLOOR, Centre
from gramian.nn.steps.conv import KernelConv
from gramian.nn.steps.gram_layer import GramLayer
from gramian.nn.steps.inputs import DenseInput, PatchInput, directions
from gramian.nn.steps.kernels import KERNELS, ArcCosine, Jitter, Kernel, Linear
from gramian.nn.steps.norm import GramNorm
from gramian.nn.steps.output import GPOutput
from gramian.nn.steps.pooling import NystromMean, SpatialMean
from gramian.nn.steps.positive_definite import PositiveDefinite
from gramian.nn.steps.whitening import ZCA, MirrorZCA, PatchZCA
from tests import reference
from tests.samples import (
    flatten,
    generator,
    grams,
    random_,
    random_features,
    random_gram,
    random_psd,
)


def assert_like(actual: GramBlocks, expected) -> None:
    for ours, theirs in zip(flatten(actual), expected, strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=1e-10, atol=1e-12)


def arrays(gram: GramBlocks):
    return tuple(block.detach().numpy() for block in flatten(gram))


@pytest.mark.parametrize("name", KERNELS)
@given(gram=grams())
def test_kernels_equal_loops(name, gram):
    kernel = KERNELS[name](weight_var=1.7, bias_var=0.3).double()
    w, b = kernel.log_weight_var.exp().item(), kernel.log_bias_var.exp().item()
    assert_like(kernel(gram), reference.kernel(name, arrays(gram), w, b))


@given(
    st.sampled_from([name for name in KERNELS if KERNELS[name].has_bandwidth]),
    grams(),
    st.floats(0.1, 10),
    st.booleans(),
)
def test_a_bandwidth_equals_loops_learned_or_not(name, gram, beta, learned):
    kernel = KERNELS[name](bandwidth=Bandwidth(beta, learned)).double()
    assert ("log_bandwidth" in dict(kernel.named_parameters())) == learned
    w, b = (value.item() for value in kernel.variances(gram.ii))
    beta = kernel.beta(gram.ii).item()  # float32 has rounded a learned one
    assert_like(kernel(gram), reference.kernel(name, arrays(gram), w, b, beta))


def test_what_has_no_bandwidth_refuses_one():
    with pytest.raises(ValueError, match="ArcCosine has no bandwidth"):
        ArcCosine(bandwidth=Bandwidth(2.0))
    with pytest.raises(ValueError, match="kernel arc_cosine has no bandwidth"):
        ConvDKMConfig(kernel="arc_cosine", bandwidth=Bandwidth(learned=True))
    with pytest.raises(ValueError, match="kernel arc_cosine has no bandwidth"):
        ConvDKMConfig(kernel="arc_cosine", output_bandwidth=Bandwidth(2.0))
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="bandwidth must be positive"):
            Bandwidth(wrong)


@given(grams(spatial=True), st.sampled_from([1, 2, 3, 5]), st.integers(1, 3))
def test_convolution_equals_loops(gram, f, stride):
    conv = KernelConv(len(gram.ii), 3, f, stride).double()
    conv.start_(generator(0))
    assert_like(
        conv(gram), reference.convolution(arrays(gram), conv.mixing.detach().numpy(), stride)
    )


@given(grams())
def test_gram_layer_equals_loops(gram):
    P = len(gram.ii)
    layer = random_(GramLayer(P, skr=SKR.off())).double()
    G = layer.inducing_gram.matrix.detach().numpy()
    K = KERNELS["squared_exponential"]().double()(gram)
    assert_like(layer(K)[0], reference.gram_layer(arrays(K), G))
    layer.unexplained = "dropped"
    assert_like(layer(K)[0], reference.gram_layer(arrays(K), G, "dropped"))


@given(grams())
def test_setting_the_gram_matrix_to_the_kernel_changes_nothing(gram):
    K = KERNELS["normalized_gaussian"]().double()(gram)
    for divergence in ("exact", "taylor", "taylor_symmetric"):
        layer = GramLayer(len(K.ii), 1.0, divergence, SKR.off()).double()
        layer.set_to_(K.ii)
        G, kl = layer(K)
        for after, before in zip(flatten(G), flatten(K), strict=True):
            torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)
        assert kl.abs() < 1e-8


def test_permuting_inducing_points_and_the_gram_matrix_permutes_the_answer():
    K, G = random_gram(4, (3, 2, 2), 0), random_psd(4, 1)
    order = torch.tensor([2, 0, 3, 1])
    outs = []
    for gram, target in [
        (K, G),
        (GramBlocks(K.ii[order][:, order], K.ti[..., order], K.tt_diag), G[order][:, order]),
    ]:
        layer = GramLayer(4, 0.5).double().eval()
        layer.set_to_(target)
        outs.append(layer(gram))
    (plain, kl), (permuted, kl_permuted) = outs
    torch.testing.assert_close(permuted.ti, plain.ti[..., order])
    torch.testing.assert_close(permuted.tt_diag, plain.tt_diag)
    torch.testing.assert_close(kl_permuted, kl)


def test_infinite_nu_has_nothing_to_learn():
    layer = GramLayer(4, nu=math.inf, skr=SKR.off()).double()
    assert not list(layer.parameters())
    K = random_gram(4, (3,), 0)
    layer.set_to_(K.ii)
    G, kl = layer(K)
    assert kl == 0
    torch.testing.assert_close(G.ti, K.ti)


def test_noise_is_needed_in_training_and_only_there():
    K = random_gram(4, (3,), 0)
    layer = GramLayer(4).double()
    with pytest.raises(ValueError, match=r"needs noise: pass model.draw_noise\(generator\)"):
        layer(K)
    with pytest.raises(ValueError, match="SKR samples only in training mode"):
        layer.eval()(K, torch.zeros(4, 1, dtype=torch.float64))
    with pytest.raises(ValueError, match="nu must be 0 or more"):
        GramLayer(4, nu=-1.0)


def test_clamped_variances_are_counted():
    K = random_gram(4, (3,), 0)
    bad = GramBlocks(K.ii, K.ti, K.tt_diag - 100)
    gram = GramLayer(4, skr=SKR.off(), variance_check=VarianceCheck(clamp=True))
    layer = DKMLayer(Linear(None, None), None, gram, GramNorm(4, (), NormChoice.off())).double()
    G, seen = layer.data(bad, layer.inducing(bad.ii, {}))
    assert seen["gram"] == 3
    assert (G.tt_diag == 0).all()


def test_a_kernel_of_ones_own_needs_one_method():
    class Quadratic(Kernel):
        def pairs(self, c, x, y):
            return c.square()

    gram = random_gram(3, (2,), 0)
    K = Quadratic(weight_var=None, bias_var=None, jitter=Jitter(0.0, 0.0))(gram)
    torch.testing.assert_close(K.ti, gram.ti.square())
    torch.testing.assert_close(K.tt_diag, gram.tt_diag.square())


def test_sums_and_products_join_block_by_block_and_add_jitter_once():
    gram = random_gram(3, (2,), 0)
    none = Jitter(0.0, 0.0)
    first = KERNELS["normalized_gaussian"](2.0, 0.1, none).double()
    second = KERNELS["matern52"](0.5, None, none).double()
    for joined, join in [(first + second, torch.add), (first * second, torch.mul)]:
        joined = joined.double()
        for jitter in (none, Jitter()):
            joined.jitter = jitter
            K, a, b = joined(gram), first(gram), second(gram)
            torch.testing.assert_close(K.ti, join(a.ti, b.ti))
            torch.testing.assert_close(K.tt_diag, jitter(join(a.tt_diag, b.tt_diag)))
            torch.testing.assert_close(K.ii, jitter.on_matrix(join(a.ii, b.ii)))
    torch.testing.assert_close(  # pairs is the formula; data go through in one pass
        (first + second).pairs(gram.ti, gram.tt_diag[:, None], gram.ii.diagonal()),
        first(gram).ti + second(gram).ti,
        rtol=1e-14,
        atol=0.0,
    )


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_survive_zero_and_coinciding_points(name, dtype):
    """A black patch, and a data point that is an inducing point: finite values and gradients."""
    features = torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, 1.0]], dtype=dtype, requires_grad=True)
    data = features[:2]
    gram = GramBlocks(features @ features.mT, data @ features.mT, data.square().sum(1))
    K = KERNELS[name]().to(dtype)(gram)
    total = sum(block.sum() for block in flatten(K))
    (gradient,) = torch.autograd.grad(total, features)
    assert total.isfinite()
    assert gradient.isfinite().all()


def test_kernel_variances_must_be_positive():
    with pytest.raises(ValueError, match="must be positive, got 0"):
        KERNELS["matern32"](weight_var=0.0)


def test_near_identity_mixing_starts_near_the_identity():
    conv = KernelConv(3, 6, start="near_identity").double()
    conv.start_(generator(0))
    C = conv.mixing.mean((2, 3))
    twice = torch.eye(3, dtype=torch.float64).repeat(2, 1)
    assert (C - 0.7 * twice).abs().max() < 0.25


@pytest.mark.parametrize("pooling", [SpatialMean((20, 5, 30)), NystromMean((60, 50))])
def test_the_mixing_of_a_pooling_starts_as_standard_normals(pooling):
    pooling.start_(generator(0))
    raw = pooling.raw_mixing.detach()
    assert abs(raw.mean()) < 0.1
    assert abs(raw.std() - 1) < 0.1


def test_identity_1x1_convolution_does_nothing():
    gram = random_gram(3, (2, 4, 5), 0)
    conv = KernelConv(3, 3, 1).double()
    with torch.no_grad():
        conv.raw_mixing.copy_(math.sqrt(3) * torch.eye(3)[:, :, None, None])
    for after, before in zip(flatten(conv(gram)), flatten(gram), strict=True):
        torch.testing.assert_close(after, before)


@pytest.mark.parametrize(("size", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2), (5, 2), (5, 3)])
@pytest.mark.parametrize("few", [0, 10**6])
def test_window_mean_against_pooling(size, stride, few, monkeypatch):
    """Both ways to compute it, and the gradient."""
    monkeypatch.setattr(windows, "FEW", few)
    values = torch.rand(2, 7, 9, dtype=torch.float64, generator=generator(), requires_grad=True)
    pooled = avg_pool2d(values, size, stride, size // 2, count_include_pad=False)
    torch.testing.assert_close(window_mean(values, size, stride), pooled)
    assert torch.autograd.gradcheck(lambda values: window_mean(values, size, stride), values)


def test_window_mean_counts_only_pixels_inside():
    ones = torch.ones(2, 5, 4)
    assert torch.equal(window_mean(ones, 3), ones)
    assert torch.equal(window_mean(ones, 5, stride=2), torch.ones(2, 3, 2))


def test_global_norm_equals_loops():
    gram = random_gram(4, (3, 2, 2), 0)
    assert_like(GramNorm(4, (2, 2)).double()(gram), reference.global_norm(arrays(gram)))


@pytest.mark.parametrize("data", ["global", "location"])
def test_running_means_move_by_momentum_and_only_when_told(data):
    gram = random_gram(4, (3, 2, 2), 0)
    norm = GramNorm(4, (2, 2), NormChoice(data=data, momentum=0.25)).double()
    n_t = norm.data_mean(gram.tt_diag)
    norm(gram)
    assert (norm.running_mean == 1).all()
    norm.update_(n_t)
    torch.testing.assert_close(norm.running_mean, 0.75 + 0.25 * n_t)
    norm.update_(n_t, momentum=1.0)
    torch.testing.assert_close(norm.running_mean, n_t)
    in_training = norm(gram)
    for after, before in zip(flatten(norm.eval()(gram)), flatten(in_training), strict=True):
        torch.testing.assert_close(after, before)


def test_location_norm_needs_pixels():
    with pytest.raises(ValueError, match=r"needs pixels"):
        GramNorm(4, (), NormChoice(data="location"))


def test_image_norm_of_dense_data_is_local():
    gram = random_gram(4, (3,), 0)
    norm = GramNorm(4, (), NormChoice(data="image", scale_data="none")).double()
    torch.testing.assert_close(norm(gram).tt_diag, torch.ones(3, dtype=torch.float64))


def test_pooling_equals_loops():
    gram = random_gram(4, (3, 2, 2), 0)
    assert_like(SpatialMean()(gram), reference.spatial_mean(arrays(gram)))


def test_positive_definite_starts_at_the_identity_and_can_be_set():
    parameter = PositiveDefinite(5).double()
    torch.testing.assert_close(parameter.matrix, torch.eye(5, dtype=torch.float64))
    G = random_psd(5, 0)
    parameter.set_to_(G)
    torch.testing.assert_close(parameter.matrix, G)


def test_inputs_equal_loops():
    draw = generator(0)
    dense = DenseInput(4, 3).double()
    patch = PatchInput(4, 2, 3).double()
    rows = torch.randn(6, 3, generator=draw, dtype=torch.float64)
    images = torch.randn(2, 2, 5, 4, generator=draw, dtype=torch.float64)
    dense.set_inducing_(dense.choose_inducing(rows, draw))
    patch.set_inducing_(patch.choose_inducing(images, draw))
    X, patches = dense.inducing_points.detach().numpy(), patch.inducing_patches.detach().numpy()
    assert_like(dense(rows), reference.dense_input(X, rows.numpy()))
    assert_like(patch(images), reference.patch_input(patches, images.numpy()))


def test_chosen_patches_are_patches_of_the_images_and_differ():
    images = torch.zeros(5, 1, 6, 6)
    images[:, :, 2:4, 2:4] = torch.rand(5, 1, 2, 2, generator=generator(0))
    layer = PatchInput(8, 1)
    patches = layer.choose_inducing(images, generator(0))
    windows = images.unfold(2, 3, 1).unfold(3, 3, 1).reshape(-1, 9)
    assert all((windows == patch.flatten()).all(1).any() for patch in patches)
    assert len({tuple(patch.flatten().tolist()) for patch in patches}) == 8
    whole = images[:, :, 1:4, 1:4]  # images of one patch
    assert (layer.choose_inducing(whole.repeat(2, 1, 1, 1), generator(0)) >= 0).all()


def test_directions_are_those_of_planted_clusters():
    draw = generator(0)
    planted = torch.linalg.qr(torch.randn(5, 5, generator=draw, dtype=torch.float64))[0]
    member = torch.arange(200) % 5
    length = 0.5 + torch.rand(200, 1, generator=draw, dtype=torch.float64)
    rows = planted[member] + 0.05 * torch.randn(200, 5, generator=draw, dtype=torch.float64)
    first = rows[:5] + 0.3 * torch.randn(5, 5, generator=draw, dtype=torch.float64)
    found = directions(length * rows, first)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(5, dtype=torch.float64))
    unit = rows / rows.norm(dim=1, keepdim=True)
    means = torch.stack([unit[member == k].mean(0) for k in range(5)])
    torch.testing.assert_close(found, means / means.norm(dim=1, keepdim=True))


def test_a_cluster_without_rows_stays_where_it_started():
    rows = torch.tensor([[1.0, 0.1], [1.0, -0.1]])
    found = directions(rows, torch.tensor([[2.0, 0.0], [-3.0, 0.0]]))
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))


def test_patches_at_the_centres_of_clusters():
    """All are of one length, and patches are nearer to them than to chosen ones."""
    smooth = torch.randn(40, 1, 12, 12, generator=generator(0)).cumsum(2).cumsum(3)
    chosen, clusters = PatchInput(8, 1), PatchInput(8, 1, start="clusters")
    chosen.set_inducing_(chosen.choose_inducing(smooth, generator(1)))
    clusters.set_inducing_(clusters.choose_inducing(smooth, generator(1)))
    lengths = clusters.inducing_patches.flatten(1).norm(dim=1)
    torch.testing.assert_close(lengths, lengths[:1].expand(8))

    def nearest(layer):
        """The mean cosine of a patch with the nearest inducing patch."""
        patches = smooth.unfold(2, 3, 1).unfold(3, 3, 1).reshape(-1, 9)
        X = layer.inducing_patches.flatten(1)
        unit, X = (x / x.norm(dim=1, keepdim=True) for x in (patches, X))
        return (unit @ X.mT).amax(1).mean()

    assert nearest(clusters) > nearest(chosen) + 0.01


def test_patches_of_images_that_are_mostly_black_have_a_length():
    images = torch.zeros(60, 1, 8, 8)
    images[:, :, 3:5, 3:5] = torch.rand(60, 1, 2, 2, generator=generator(0))
    patches = PatchInput(8, 1, start="clusters").choose_inducing(images, generator(0))
    lengths = patches.flatten(1).norm(dim=1)
    torch.testing.assert_close(lengths, lengths[:1].expand(8))
    assert 0.2 < lengths[0] < 2


def test_flat_images_have_no_clusters():
    images = torch.zeros(3, 1, 5, 5)
    images[0, 0, 1, 1] = 1.0
    patches = PatchInput(4, 1, start="clusters").choose_inducing(images, generator(0))
    assert patches.isfinite().all()
    assert len({tuple(patch.flatten().tolist()) for patch in patches}) == 4


def test_chosen_points_are_a_copy():
    rows = torch.randn(5, 2, generator=generator(0))
    layer = DenseInput(5, 2)
    layer.set_inducing_(rows)
    with torch.no_grad():
        layer.inducing_points.zero_()
    assert rows.abs().min() > 0


def test_inputs_refuse_what_does_not_fit():
    images = torch.randn(2, 1, 4, 4)
    with pytest.raises(ValueError, match=r"9 inducing points .* only 8 3×3 patches"):
        PatchInput(9, 1).choose_inducing(images, generator())
    with pytest.raises(ValueError, match=r"images of \(2, 4\) pixels hold no 3×3 patch"):
        PatchInput(1, 1).choose_inducing(images[:, :, :2], generator())
    with pytest.raises(ValueError, match=r"inducing patches must have shape \(2, 1, 3, 3\), got"):
        PatchInput(2, 1).set_inducing_(torch.zeros(2, 1, 3, 2))
    with pytest.raises(ValueError, match="patch_size must be odd"):
        PatchInput(2, 1, 4)
    with pytest.raises(ValueError, match=r"6 inducing points .* only 5 rows"):
        DenseInput(6, 2).choose_inducing(torch.randn(5, 2), generator())


def test_whitened_images_are_white():
    """Without regularisation, the whitened fit set has the identity as its covariance."""
    images = torch.randn(400, 2, 3, 3, generator=generator(0), dtype=torch.float64)
    images[:, :, 1:] += images[:, :, :-1]
    zca = ZCA((2, 3, 3), epsilon=0.0).double()
    zca.fit_(images)
    white = zca(images).flatten(1)
    covariance = white.mT @ white / len(white)
    off = covariance - covariance.diagonal().diag()
    assert off.abs().max() < 0.02


def test_whitening_in_float32_is_fitted_in_float64():
    images = torch.randn(200, 1, 4, 4, generator=generator(0)).cumsum(-1)
    single, double = ZCA((1, 4, 4)), ZCA((1, 4, 4)).double()
    single.fit_(images)
    double.fit_(images.double())
    torch.testing.assert_close(single.matrix, double.matrix.float(), rtol=0, atol=0)


def test_whitening_survives_fewer_images_than_pixels_and_flat_channels():
    images = torch.randn(3, 2, 4, 4, generator=generator(0))
    images[:, 1] = 0.5
    zca = ZCA((2, 4, 4))
    zca.fit_(images)
    assert zca(images).isfinite().all()
    assert zca(images)[:, 1].abs().max() < 1e-5  # and no noise of size 1
    with pytest.raises(ValueError, match="at least 2 images"):
        zca.fit_(images[:1])


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (DenseInput(3, 2), (4, 2)),
        (DenseInput(3, 2, "one"), (4, 2)),
        (DenseInput(3, 2, "per_feature"), (4, 2)),
        (PatchInput(3, 2), (1, 2, 4, 3)),
    ],
)
def test_gradients_of_inputs(layer, shape):
    layer = random_(layer.double())
    x = torch.randn(shape, generator=generator(0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *_: flatten(layer(x)), [x, *layer.parameters()])


def test_lengthscales_divide_the_features():
    layer = random_(DenseInput(3, 2, "per_feature").double())
    x = torch.randn(4, 2, generator=generator(0), dtype=torch.float64)
    scales = layer.log_lengthscales.exp()
    plain = DenseInput(3, 2).double()
    plain.set_inducing_((layer.inducing_points / scales).detach())
    for ours, theirs in zip(flatten(layer(x)), flatten(plain(x / scales)), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("divergence", ["exact", "taylor", "taylor_symmetric"])
def test_gradients_of_the_output(divergence):
    layer = random_(GPOutput(3, 2, divergence).double())
    K = random_gram(3, (2,), 0)
    leaves = [leaf.requires_grad_() for leaf in flatten(K)]

    def run(ii, *_):
        q, kl = layer(GramBlocks((ii + ii.mT) / 2, K.ti, K.tt_diag))
        return q.mean, q.var, kl

    assert torch.autograd.gradcheck(run, [*leaves, *layer.parameters()])


def test_whitening_in_chunks_is_whitening_at_once(monkeypatch):
    images = torch.randn(10, 2, 3, 3, generator=generator(0), dtype=torch.float64) + 5
    whole, chunked = ZCA((2, 3, 3)).double(), ZCA((2, 3, 3)).double()
    whole.fit_(images)
    monkeypatch.setattr("gramian.nn.steps.whitening.CHUNK", 3)
    monkeypatch.setattr("gramian.nn.steps.whitening.BLOCK", 4)
    chunked.fit_(images)
    for name, buffer in whole.named_buffers():
        torch.testing.assert_close(chunked.get_buffer(name), buffer, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(2, 3, 6), (3, 4, 5), (1, 3, 2)])
def test_mirrored_is_the_zca_of_images_and_mirror_images(shape, dtype, monkeypatch):
    images = torch.randn(40, *shape, generator=generator(0), dtype=dtype).cumsum(-1) + 3
    both, mirrored = ZCA(shape, 0.2).to(dtype), MirrorZCA(shape, 0.2).to(dtype)
    torch.testing.assert_close(mirrored(images), images)  # before it is fitted
    both.fit_(torch.cat([images, images.flip(3)]))
    monkeypatch.setattr("gramian.nn.steps.whitening.CHUNK", 7)
    mirrored.fit_(images)
    tolerance = {"rtol": 1e-9, "atol": 1e-10} if dtype == torch.float64 else {}
    torch.testing.assert_close(mirrored(images), both(images), **tolerance)
    torch.testing.assert_close(mirrored(images.flip(3)), mirrored(images).flip(3), **tolerance)
    numbers = sum(buffer.numel() for buffer in mirrored.buffers())
    assert numbers < 0.8 * sum(buffer.numel() for buffer in both.buffers())


def test_patches_as_large_as_the_image_are_whitened_as_the_image():
    """The middle pixel then is that of ZCA, but for the last standardisation."""
    images = torch.randn(60, 2, 5, 5, generator=generator(0), dtype=torch.float64).cumsum(-1) + 3
    whole, patches = ZCA((2, 5, 5)).double(), PatchZCA((2, 5, 5)).double()
    whole.fit_(images)
    patches.fit_(images)
    middle = whole.matrix.view(2, 5, 5, 2, 5, 5)[:, 2, 2]
    torch.testing.assert_close(patches.filters, middle, rtol=1e-9, atol=1e-12)
    ours, theirs = (white(images)[:, :, 2, 2] for white in (patches, whole))
    for channel in range(2):
        both = torch.stack([ours[:, channel], theirs[:, channel]])
        assert torch.corrcoef(both)[0, 1] > 1 - 1e-9


def test_whitened_patches_by_loops():
    """Filters from the definition, applied pixel by pixel with the nearest pixel beyond borders."""
    images = torch.randn(4, 2, 9, 10, generator=generator(1), dtype=torch.float64)
    images[:, :, 1:] += 2 * images[:, :, :-1]
    white = PatchZCA((2, 9, 10), epsilon=0.2, side=3).double()
    white.fit_(images)
    mean, std = images.mean((0, 2, 3)), images.transpose(0, 1).flatten(1).std(1)
    M = ((images - mean[:, None, None]) / std[:, None, None]).numpy()
    rows = [
        M[n, :, i : i + 3, j : j + 3].ravel()
        for n in range(4)
        for i in range(0, 7, 2)
        for j in range(0, 8, 2)
    ]
    Sigma = np.array(rows).T @ np.array(rows)
    eigenvalues, U = np.linalg.eigh(Sigma)
    W = U @ np.diag((eigenvalues + 0.2 * eigenvalues.mean()) ** -0.5) @ U.T
    out = np.zeros_like(M)
    for c in range(2):
        filters = W[c * 9 + 4].reshape(2, 3, 3)
        for n, i, j in np.ndindex(4, 9, 10):
            for d, a, b in np.ndindex(2, 3, 3):
                y, x = min(max(i + a - 1, 0), 8), min(max(j + b - 1, 0), 9)
                out[n, c, i, j] += filters[d, a, b] * M[n, d, y, x]
    out -= out.mean((0, 2, 3), keepdims=True)
    out /= out.std((0, 2, 3), keepdims=True, ddof=1)
    torch.testing.assert_close(white(images), torch.from_numpy(out), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("shape", "side"), [((1, 8, 8), 7), ((3, 6, 9), 5), ((1, 1, 4), 1)])
def test_patches_are_odd_and_fit_small_images(shape, side):
    white = PatchZCA(shape)
    images = torch.randn(20, *shape, generator=generator(0))
    assert white.filters.shape == (shape[0], shape[0], side, side)
    torch.testing.assert_close(white(images), images)  # before it is fitted
    white.fit_(images)
    assert white(images).isfinite().all()
    with pytest.raises(ValueError, match="at least 2 images"):
        white.fit_(images[:1])


def test_patches_come_from_a_thousand_images_at_most(monkeypatch):
    monkeypatch.setattr("gramian.nn.steps.whitening.MOST", 5)
    images = torch.randn(12, 1, 8, 8, generator=generator(0))
    all_, some = PatchZCA((1, 8, 8)), PatchZCA((1, 8, 8))
    all_.fit_(images)
    some.fit_(images[::3])
    torch.testing.assert_close(all_.filters, some.filters, rtol=0, atol=0)


@pytest.mark.parametrize("start", ["random", "kernel", "prior"])
def test_where_the_output_starts(start):
    output, K_ii = GPOutput(5, 2, start=start).double(), random_psd(5, 0)
    output.start_(K_ii, generator())
    assert (output.q_mean == 0).all() == (start == "prior")
    is_kernel = torch.allclose(output.q_cov.matrix, K_ii, atol=1e-10)
    assert is_kernel == (start != "random")


# ---- centring ----


@given(st.integers(1, 6), st.sampled_from([(3,), (2, 3, 4)]), st.integers(0, 10_000), st.booleans())
def test_centring_takes_a_point_from_all_features(P, data, seed, at_start):
    F_i, F_t = random_features(P, data, seed)
    N = F_i.shape[1]
    centre = Centre(P).double() if at_start else random_(Centre(P), seed).double()
    c = centre.weights @ F_i
    A, T = F_i - c, F_t - c
    expected = (A @ A.mT / N, T @ A.mT / N, T.square().sum(-1) / N)
    assert_like(centre(random_gram(P, data, seed)), [part.detach().numpy() for part in expected])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_point_at_the_centre_has_a_length_above_rounding_and_a_finite_kernel(dtype):
    P = 5
    F_i, F_t = random_features(P, (4,), 0)
    centre = random_(Centre(P)).to(dtype)
    F_t[0] = centre.weights.detach().double() @ F_i  # c itself: what is left of it is rounding
    N = F_i.shape[1]
    gram = GramBlocks(F_i @ F_i.mT / N, F_t @ F_i.mT / N, F_t.square().sum(-1) / N)
    centred = centre(GramBlocks(*(part.to(dtype).requires_grad_() for part in flatten(gram))))
    least = FLOOR * torch.finfo(dtype).eps * F_t[0].square().sum() / N
    assert least <= centred.tt_diag[0] <= 10 * least
    kernel = KERNELS["normalized_gaussian"](bandwidth=Bandwidth(8.0)).to(dtype)
    K = kernel(centred)
    gradients = torch.autograd.grad(K.ti.sum() + K.tt_diag.sum(), list(centre.parameters()))
    assert all(part.isfinite().all() for part in (*flatten(K), *gradients))


def test_a_new_centre_leaves_the_gram_matrix_positive_definite():
    for P in (1, 2, 40):
        G_ii = random_psd(P, 1)
        centred = Centre(P).double().inducing(G_ii).ii
        assert torch.linalg.eigvalsh(centred).min() > 0.01 * torch.linalg.eigvalsh(G_ii).min() / P


def test_a_step_of_the_optimiser_moves_the_centre_as_far_at_any_width():
    """Steps of one size and of any sign, with features of unit length at right angles."""
    moved = []
    for P in (16, 400):
        centre = Centre(P).double()
        before = centre.weights.detach()
        torch.testing.assert_close(before, torch.full_like(before, 1 / (P + 1)))
        with torch.no_grad():
            centre.raw_weights += 0.03 * torch.tensor([1.0, -1.0]).repeat(P // 2)
        moved.append((centre.weights.detach() - before).norm())
    torch.testing.assert_close(*moved)


def test_the_paper_has_no_centre():
    assert not ConvDKMConfig().centre
    assert not any(
        "centre" in name
        for name, _ in DKMLayer.build(ConvDKMConfig(), 4, 4, (4, 4), 1).named_parameters()
    )
