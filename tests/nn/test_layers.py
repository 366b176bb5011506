"""Layers: the fast halves against the definition, and nothing computed that nobody reads."""

from types import SimpleNamespace

import pytest
import torch

from gramian import SKR, ConvDKM, ConvDKMConfig, GramBlocks, NegativeVarianceError, NormChoice
from gramian.nn.layers import DKMLayer, Layer, ResidualBlock, Shortcut
from gramian.nn.steps import gram_layer, output
from gramian.nn.steps.centre import Centre
from gramian.nn.steps.conv import KernelConv
from gramian.nn.steps.gram_layer import GramLayer
from gramian.nn.steps.kernels import KERNELS
from gramian.nn.steps.norm import GramNorm
from gramian.nn.steps.pooling import NystromMean, SpatialMean
from tests.samples import flatten, generator, random_, random_gram

P, SPACE = 4, (3, 4)


def layer(data="global", scale="global", stride=1, space=SPACE, centred=False, **settings):
    conv = KernelConv(P, 5, stride=stride) if space else None
    num = 5 if space else P
    after = tuple(-(-side // stride) for side in space)
    norm = GramNorm(num, after, NormChoice(data=data, scale_inducing="local", scale_data=scale))
    centre = Centre(P) if centred else None
    gram = GramLayer(num, **settings)
    made = DKMLayer(KERNELS["normalized_gaussian"](), conv, gram, norm, centre)
    return random_(made.double())


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    "made",
    [
        layer(),
        layer(stride=2, skr=SKR(0.5)),
        layer(data="location", scale="location", skr=SKR(2.0)),
        layer(data="image", divergence="exact", skr=SKR(None)),
        layer(space=(), skr=SKR.off(), nu=0.0),
        layer(space=(), nu=float("inf")),
        layer(centred=True, skr=SKR(0.5)),
        layer(space=(), centred=True, unexplained="dropped"),
    ],
    ids=["plain", "stride", "location", "image", "dense", "nngp", "centre", "dense centre"],
)
def test_a_layers_two_halves_are_its_four_steps(made, mode):
    made.train(mode == "train")
    gram = random_gram(P, (2, *(SPACE if made.conv else ())), 0)
    gram = GramBlocks(*(part.clone().requires_grad_() for part in flatten(gram)))
    noise = {}
    if made.gram.samples:
        num = made.gram.num_inducing
        noise = {"gram": made.gram.skr.draw_noise(num, generator(1), torch.float64)}
    state = made.inducing(gram.ii, noise)
    fast, _ = made.data(gram, state)
    slow, kl = made(gram, noise.get("gram"))
    parameters = [gram.ii, gram.ti, gram.tt_diag, *made.parameters()]
    gradients = []
    for blocks, own_kl in ((fast, made.kl(state)["gram"]), (slow, kl)):
        scalar = own_kl + sum((part.sin() * torch.pi).sum() for part in flatten(blocks))
        gradients.append(torch.autograd.grad(scalar, parameters, allow_unused=True))
    for a, b in zip(flatten(fast), flatten(slow), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(made.kl(state)["gram"], kl)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("with_shortcut", [False, True])
def test_a_block_is_its_two_branches(with_shortcut):
    shortcut = None
    if with_shortcut:
        shortcut = Shortcut(KernelConv(P, P, 1), GramNorm(P, SPACE)).double()
    layers = [
        DKMLayer(KERNELS["matern52"](), KernelConv(P, P), GramLayer(P), GramNorm(P, SPACE)).double()
        for _ in range(2)
    ]
    block = random_(ResidualBlock(*layers, shortcut, (0.3, 0.6))).eval()
    gram = random_gram(P, (2, *SPACE), 0)
    out, _ = block.data(gram, block.inducing(gram.ii, {}))
    main = block.layer2(block.layer1(gram)[0])[0]
    through = gram if shortcut is None else shortcut(gram)
    for a, b, c in zip(flatten(out), flatten(main), flatten(through), strict=True):
        torch.testing.assert_close(a, 0.6 * b + 0.3 * c, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("statistics", ["running", "batch"])
def test_a_prediction_computes_no_kl(monkeypatch, statistics):
    config = ConvDKMConfig(
        image_shape=(1, 6, 6),
        num_inducing=(4,),
        strides=(2,),
        blocks_per_stage=1,
        whitening=False,
        norm=NormChoice(statistics=statistics),
    )
    model = ConvDKM.from_config(config)
    x = torch.randn(9, 1, 6, 6, generator=generator())

    def nobody(*_):
        raise AssertionError("a KL that nobody reads")

    model.initialise_(x, generator(1))
    expected = model.eval()(x).marginals.mean
    for module in (gram_layer, output):
        monkeypatch.setattr(module, "gaussian_divergence", nobody)
    torch.testing.assert_close(model.for_prediction()(x).mean, expected, rtol=1e-4, atol=1e-4)
    model.estimate_statistics_([x])
    with pytest.raises(AssertionError, match="nobody reads"):
        model(x)


@pytest.mark.parametrize("pooling", [SpatialMean, NystromMean])
def test_pooled_variances_are_checked(pooling):
    gram = random_gram(P, (2, 3), 0)
    bad = GramBlocks(gram.ii, gram.ti, gram.tt_diag - 100)
    with pytest.raises(NegativeVarianceError, match="2 of 2 variances"):
        pooling()(bad)


class Tripling(Layer):
    """G → 3 G: a layer that is none of ours."""

    def inducing(self, G_ii, noise):
        return SimpleNamespace(ii=3 * G_ii)

    def data(self, gram, state):
        return GramBlocks(state.ii, 3 * gram.ti, 3 * gram.tt_diag), {}


def test_a_block_of_custom_layers_weighs_its_branches():
    G = random_gram(4, (2, 3, 3), 0)
    block = ResidualBlock(Tripling(), Tripling(), None, weights=(0.25, 2.0))
    found, _ = block.data(G, block.inducing(G.ii, {}))
    for name in ("ii", "ti", "tt_diag"):
        torch.testing.assert_close(getattr(found, name), (0.25 + 2 * 9) * getattr(G, name))


@pytest.mark.parametrize("weights", [(-0.1, 1.0), (1.0, -0.1), (0.0, 0.0)])
def test_weights_of_branches_are_positive(weights):
    with pytest.raises(ValueError, match="residual weights"):
        ResidualBlock(Tripling(), Tripling(), None, weights)
