"""Custom parts from files outside the package: they train, freeze, save and load like ours."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gramian import (
    SKR,
    ConvDKM,
    ConvDKMConfig,
    Dataset,
    DenseDKM,
    DenseDKMConfig,
    Predictor,
    fit,
    objective,
)
from gramian.nn.named import find
from gramian.nn.steps.kernels import KERNELS, Kernel
from gramian.train.cost.step_memory import layer_memories
from gramian.train.data import load
from gramian.train.predict.evaluate import as_numbers, evaluate
from gramian.train.predict.export import export
from gramian.train.pretrained import PretrainedError
from tests.samples import generator, random_

EXAMPLES = Path(__file__).parents[1] / "examples"
CONV = ConvDKMConfig(
    image_shape=(1, 6, 6),
    num_inducing=(5, 6),
    strides=(1, 2),
    blocks_per_stage=1,
    whitening=False,
    num_samples=8,
    output_start="kernel",
)

DENSE = DenseDKMConfig(num_inducing=8, divergence="exact", output_start="kernel", nu=10.0)


@pytest.fixture
def example(monkeypatch):
    """Import an example by its name, as a user who works in that folder does."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        module = importlib.import_module(name)
        monkeypatch.setitem(sys.modules, name, module)  # taken out again after the test
        return module

    return load


def images(count=7):
    return torch.randn(count, 1, 6, 6, generator=generator(), dtype=torch.float64)


def built(config):
    model = (ConvDKM if isinstance(config, ConvDKMConfig) else DenseDKM).from_config(config)
    model.double().initialise_(images() if model.data_shape != (3,) else rows(), generator(1))
    return random_(model)


def rows(count=30):
    return torch.randn(count, 3, generator=generator(), dtype=torch.float64)


def assert_trains(model, x):
    """Every parameter has a gradient, and the KL of every Gram layer is there."""
    noise, labels = model.train().draw_noise(generator(2)), torch.arange(len(x)) % 2
    result = model(x, noise)
    samples = model.draw_samples(len(x), generator(3))
    objective(result, model.likelihood, labels, samples, len(x)).loss.backward()
    missing = [
        n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()
    ]
    assert not missing
    assert set(noise) < set(result.kl)


def assert_freezes(model, x):
    model.eval()
    expected, frozen = model(x).marginals, model.freeze()
    for name in ("mean", "var"):
        torch.testing.assert_close(getattr(frozen(x), name), getattr(expected, name))
    single = model.float().freeze()(x.float())  # a frozen form moves with its model's dtype
    torch.testing.assert_close(frozen.float()(x.float()).mean, single.mean, rtol=1e-3, atol=1e-3)


def test_a_custom_kernel(example):
    example("custom_kernel")
    name = "custom_kernel.RationalQuadratic"
    for config, x in ((replace(CONV, kernel=name), images()), (dense(name), rows())):
        model = built(config)
        assert any("log_alpha" in parameter for parameter, _ in model.named_parameters())
        assert_trains(model, x)
        assert_freezes(model, x)


def dense(kernel):
    return DenseDKMConfig(num_features=3, num_inducing=6, kernel=kernel, skr=SKR(0.5))


def test_a_custom_layer(example):
    example("custom_layer")
    model = built(replace(CONV, layer="custom_layer.SideBySide", num_outputs=2))
    assert "stage1_block1.layer2.second.gram" in model.draw_noise(generator())
    assert_trains(model, images())
    memories = layer_memories(model, batch=4)
    plain = layer_memories(built(CONV), batch=4)
    assert all(memories[name].inside > plain[name].inside for name in plain)
    assert_freezes(model, images())
    assert_trains(built(replace(dense("matern32"), layer="custom_layer.SideBySide")), rows())


def test_a_layer_may_be_computed_again_in_the_backward_pass(example):
    example("custom_layer")
    model = built(replace(CONV, layer="custom_layer.SideBySide")).train()
    noise, gradients = model.draw_noise(generator(2)), []
    for recomputed in (frozenset(), frozenset(model.layers)):
        model.recomputed = recomputed
        model.zero_grad()
        model(images(), noise).marginals.mean.sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_a_custom_likelihood(example, tmp_path):
    example("custom_likelihood")
    name = "custom_likelihood.Laplace"
    x, y = rows(), 2000 + 5 * rows()[:, :1]
    y[::10] += 500
    config = replace(DENSE, likelihood=name)
    predictor = fit(config, x, y, natural=True, max_epochs=5, precision="64-true", device="cpu")
    found = predictor.predictions(x)
    assert (found["mean"] - 2000).abs().median() < 20
    assert set(as_numbers(evaluate(predictor, Dataset(x, y)))) >= {"rmse", "log_likelihood"}
    export(predictor, tmp_path / "model.pt2", "pt2")
    predictor.save_pretrained(tmp_path)
    loaded = Predictor.from_pretrained(tmp_path)
    assert torch.equal(loaded.predictions(x)["mean"], found["mean"])
    del sys.modules["custom_likelihood"]
    with pytest.raises(PretrainedError, match=r"import it first .*--import custom_likelihood"):
        Predictor.from_pretrained(tmp_path)


def test_custom_data(example):
    example("custom_data")
    splits = load("custom_data.spirals")
    assert (len(splits.train), len(splits.test), splits.train.targets) == (200, 100, "classes")
    predictor = fit(DENSE, splits.train.x, splits.train.y, max_epochs=1, device="cpu")
    assert predictor.predictions(splits.test.x)["probabilities"].shape == (100, 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cubic", "unknown kernel 'cubic'; known are arc_cosine, .*, or module.Class"),
        (
            "nowhere.Cubic",
            "in the module nowhere, which is not imported: import it first .*--import",
        ),
        ("torch.Tensor", "torch.Tensor is no kernel: it must be a subclass of Kernel"),
        ("torch.nothing", "torch.nothing is no kernel"),
    ],
)
def test_names_that_are_no_kernel(name, message):
    with pytest.raises(ValueError, match=message):
        find("kernel", name, KERNELS, Kernel)
    with pytest.raises(ValueError, match=message):
        replace(CONV, kernel=name)


def test_nothing_is_imported_unasked(tmp_path, monkeypatch):
    (tmp_path / "hostile.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="not imported"):
        replace(CONV, kernel="hostile.Kernel")
    assert "hostile" not in sys.modules
