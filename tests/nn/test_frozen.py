"""The frozen form must be the model in evaluation mode, to rounding."""

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from gramian import (
    SKR,
    Bandwidth,
    GramBlocks,
    Layer,
    NegativeVarianceError,
    NormChoice,
    VarianceCheck,
)
from gramian.nn.joint import joint
from gramian.nn.steps.kernels import KERNELS, Kernel, Matern32, NormalizedGaussian, SumKernel
from tests.nn.test_models import DENSE, SMALL, conv_model, dense_model, images, rows
from tests.samples import random_

CONV = {
    "published": {},
    "no_skr": {"skr": SKR.off()},
    "jitter_only": {"skr": SKR(None)},
    "nngp": {"nu": math.inf, "skr": SKR.off()},
    "no_whitening": {"whitening": False},
    "whitened_patches": {"whitening": "patches"},
    "whitened_mirrored": {"whitening": "mirrored"},
    "unequal_weights": {"residual_weights": (0.3, 0.9)},
    "plain_kernel": {"weight_var": None, "bias_var": None},
    "clamped": {"variance_check": VarianceCheck(clamp=True)},
    "bandwidth": {"bandwidth": Bandwidth(3.0, learned=True)},
    "output_bandwidth": {"output_bandwidth": Bandwidth(0.5, learned=True)},
    "dropped": {"unexplained": "dropped"},
    "centre": {"centre": True},
    "recipe": {"centre": True, "unexplained": "dropped", "bandwidth": Bandwidth(3.0, True)},
    "mean_weights": {"residual_weights": "mean"},
    **{f"pool_{p}": {"pooling": p} for p in ("nystrom", "mean_mixing", "nystrom_mixing")},
    **{f"kernel_{kernel}": {"kernel": kernel} for kernel in KERNELS},
    **{
        f"norm_{data}_{scale}": {
            "norm": NormChoice(data=data, scale_data=scale, scale_inducing="local")
        }
        for data in ("none", "global", "local", "location", "image")
        for scale in ("none", "location")
    },
}


def moved(model):
    """Away from the start values, where much is special."""
    return random_(model, 3).eval()


def assert_same(a, b, rtol):
    torch.testing.assert_close(
        a.mean, b.mean, rtol=rtol, atol=rtol * b.mean.detach().abs().max().item()
    )
    torch.testing.assert_close(
        a.var, b.var, rtol=rtol, atol=rtol * b.var.detach().abs().max().item()
    )


@pytest.mark.parametrize("changes", CONV.values(), ids=CONV)
def test_a_frozen_image_model_is_the_model(changes):
    model = moved(conv_model(replace(SMALL, **changes)))
    assert_same(model.freeze()(images(5, seed=7)), model(images(5, seed=7)).marginals, 1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("skr", [SKR(), SKR.off()], ids=["skr", "plain"])
@pytest.mark.parametrize("num_layers", [0, 2])
def test_a_frozen_dense_model_is_the_model(kernel, skr, num_layers):
    config = replace(DENSE, kernel=kernel, skr=skr, num_layers=num_layers)
    model = moved(dense_model(config))
    assert_same(model.freeze()(rows(5, seed=7)), model(rows(5, seed=7)).marginals, 1e-10)


class GaussianAndMatern(SumKernel):
    def __init__(self, *settings):
        super().__init__(NormalizedGaussian(*settings), Matern32())


class Steeper(NormalizedGaussian):
    """A subclass whose formula is not that of its parent."""

    def pairs(self, c, x, y):
        return super().pairs(c, x, y).square() / (x * y).sqrt()

    def rows(self, c, x, y):
        return Kernel.rows(self, c, x, y)


@pytest.mark.parametrize("kernel", [GaussianAndMatern, Steeper])
def test_a_custom_kernel_freezes_too_also_a_subclass_of_ours(kernel):
    model = moved(conv_model(replace(SMALL, kernel=f"{__name__}.{kernel.__name__}")))
    assert_same(model.freeze()(images()), model(images()).marginals, 1e-10)


def test_in_float32_the_frozen_form_is_as_accurate_as_the_model():
    exact = moved(conv_model())
    model = copy.deepcopy(exact).float()
    truth, x = exact(images()).marginals, images().float()
    for q in (model.freeze()(x), model(x).marginals):
        assert (q.mean - truth.mean).abs().max() / truth.mean.abs().max() < 1e-4
        assert (q.var - truth.var).abs().max() / truth.var.abs().max() < 1e-4


def test_freezing_changes_nothing_and_later_changes_do_not_reach_the_frozen_form():
    model = conv_model().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    frozen = model.freeze()
    assert model.training
    assert not frozen.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    q = frozen(images())
    random_(model)
    with torch.no_grad():
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.add_(1)
    assert torch.equal(frozen(images()).mean, q.mean)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert not q.mean.requires_grad


def test_a_prediction_does_not_depend_on_the_batch():
    frozen, x = conv_model().freeze(), images()
    alone = torch.cat([frozen(x[i : i + 1]).mean for i in range(len(x))])
    torch.testing.assert_close(alone, frozen(x).mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("data", ["image", "local", "location", "global"])
def test_one_image_is_predicted_as_among_others(data):
    model, x = moved(conv_model(replace(SMALL, norm=NormChoice(data=data)))), images(3, seed=7)
    together = model.predict(x)
    for predict in (model.predict, model.freeze()):
        alone = predict(x[1:2])
        torch.testing.assert_close(alone.mean[0], together.mean[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm", [{"data": "location"}, {"scale_data": "location"}])
def test_maps_of_one_pixel_are_normalised_too(norm):
    changes = {"num_inducing": (8, 8, 8), "strides": (2, 2, 2), "stem_stride": 2}
    config = replace(SMALL, **changes, blocks_per_stage=1, norm=NormChoice(**norm))
    model = moved(conv_model(config))
    assert_same(model.freeze()(images(5, seed=7)), model(images(5, seed=7)).marginals, 1e-10)


class Doubling(Layer):
    """A layer with a state that is no dataclass: G → 2 G, and a learned shift of the variance."""

    def __init__(self):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.ones(()))

    @classmethod
    def build(cls, config, P_in, P, space, stride):
        return cls()

    def inducing(self, G_ii, noise):
        return SimpleNamespace(ii=2 * G_ii, more=[self.shift + 1])

    def data(self, gram, state):
        return GramBlocks(state.ii, 2 * gram.ti, 2 * gram.tt_diag + state.more[0]), {}


def test_the_state_of_a_custom_layer_is_saved_and_moved():
    config = replace(DENSE, layer=f"{__name__}.Doubling", num_layers=2)
    first, second = (moved(dense_model(config)) for _ in range(2))
    with torch.no_grad():
        first.layers["layer1"].shift.fill_(3.0)
    frozen, other = first.freeze(), second.freeze()
    x = rows(4, seed=7)
    assert_same(frozen(x), first(x).marginals, 1e-10)
    assert (other(x).var - frozen(x).var).abs().max() > 1e-3
    other.load_state_dict(frozen.state_dict())
    assert_same(other(x), frozen(x), 1e-12)
    assert_same(frozen.float()(x.float()), first.float()(x.float()).marginals, 1e-3)


def test_no_joint_distribution_through_a_custom_layer():
    config = replace(DENSE, layer=f"{__name__}.Doubling", num_layers=1)
    with pytest.raises(ValueError, match="taken through layer1, a Doubling"):
        joint(moved(dense_model(config)), rows(4, seed=7))


def test_choices_that_need_no_batch_can_be_frozen_whatever_the_statistics():
    norm = NormChoice(data="image", statistics="batch")
    model = moved(conv_model(replace(SMALL, norm=norm)))
    assert model.can_freeze
    assert_same(model.freeze()(images(5, seed=7)), model(images(5, seed=7)).marginals, 1e-10)


def test_statistics_of_the_batch_cannot_be_frozen():
    model = conv_model(replace(SMALL, norm=NormChoice(statistics="batch")))
    assert not model.can_freeze
    with pytest.raises(ValueError, match="statistics of the batch at hand cannot be frozen"):
        model.freeze()


def test_a_model_without_start_values_cannot_be_frozen():
    model = conv_model()
    model.initialised.fill_(False)
    with pytest.raises(RuntimeError, match="no start values"):
        model.freeze()


def test_a_bad_variance_names_the_layer():
    frozen = conv_model().freeze()
    frozen.layers["stage1_block2"].layer1.spread.fill_(-1e6)
    with pytest.raises(NegativeVarianceError, match=r"^stage1_block2\.layer1: 432 of 432 "):
        frozen(images())


def test_clamped_variances_count_as_zero():
    frozen = conv_model(replace(SMALL, variance_check=VarianceCheck(clamp=True))).freeze()
    frozen.output.spread.fill_(-1e6)
    assert frozen(images()).var.eq(0).all()
    frozen.layers["stage1_block2"].layer1.spread.fill_(math.nan)
    with pytest.raises(NegativeVarianceError, match=r"^stage1_block2\.layer1: 432 of 432 "):
        frozen(images())


def test_clamped_variances_after_pooling_count_as_zero_too(monkeypatch):
    changes = {"pooling": "nystrom", "kernel": "squared_exponential"}
    config = replace(SMALL, variance_check=VarianceCheck(clamp=True), **changes)
    model = moved(conv_model(config))
    pool = type(model.pooling).pool

    def negative(self, ti, tt, inverse_factor):
        pooled, variance = pool(self, ti, tt, inverse_factor)
        return pooled, variance - 100

    monkeypatch.setattr(type(model.pooling), "pool", negative)
    assert_same(model.freeze()(images(5, seed=7)), model(images(5, seed=7)).marginals, 1e-10)


def test_all_of_a_frozen_model_moves_to_another_type():
    model = moved(conv_model(replace(SMALL, pooling="nystrom")))
    x = images(3, seed=7)
    narrow = model.freeze().float()(x.float())
    assert_same(narrow, model.float()(x.float()).marginals, 1e-3)
