"""Compiled layers: no break in any region, and the numbers of the layers as they are written.

Run by test_compiled.py in a process of its own, without the type checks of the other tests, which
PyTorch's compiler does not understand.
"""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters

from gramian import SKR, NormChoice
from gramian.gram.errors import NegativeVarianceError, deferred_checks
from gramian.train.runtime import compiled
from gramian.train.trainer import TrainingFailed
from tests.train.tiny import MODEL, config, trainer, weights


@pytest.fixture(autouse=True)
def fresh():
    """Nothing compiled before counts."""
    torch._dynamo.reset()
    counters.clear()


def with_engine(**changes):
    from gramian.train.runtime.engine import Engine

    settings = config(**changes)
    return trainer(settings, engine=Engine("cpu", precision=settings.precision, compile=True))


WIDE = replace(MODEL, num_inducing=(16, 16), skr=SKR(gamma_power=0.0))


@pytest.mark.parametrize("model", [MODEL, WIDE], ids=["narrow", "wide"])
def test_a_run_has_no_breaks_and_the_same_numbers(monkeypatch, model):
    """By PyTorch's tracer alone, which is quick: the whole model, forward and backward."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    settings = {"max_epochs": 1, "precision": "64-true", "model": model}
    plain, run = trainer(config(**settings)), with_engine(**settings)
    plain.fit()
    run.fit()
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 10  # 5 layers; a batch, the last one
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(run)[name], value, rtol=1e-8, atol=1e-9)
    assert not any("data" in vars(module) for module in run.model.modules())


def test_an_error_in_a_compiled_layer_says_where(monkeypatch):
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    model = replace(MODEL, norm=NormChoice("none", "none"))
    run = with_engine(max_epochs=1, model=model)
    run.start(resume=False)
    layer = run.model.layers["stage1_block1"].layer1.gram
    check = layer.variance_check

    def failing(variance):
        if not torch.compiler.is_compiling():
            raise NegativeVarianceError(1, variance.numel(), -1.0, check.threshold)
        return check(variance * torch.nan)

    failing.clamp = check.clamp
    layer.variance_check = failing
    with pytest.raises(TrainingFailed, match=r"stage1_block1\.layer1: 1 of"):
        run.train_step()


def test_a_region_by_the_real_compiler():
    """One layer, because each takes seconds."""
    run = trainer()
    run.start(resume=False)
    model = run.model
    x = run.task.inputs(run.task.train.x[:4], torch.Generator(), torch.float32)
    chain = model.inducing_chain(model.draw_noise(torch.Generator()))
    layer, state = model.layers["stem"], chain.layers["stem"]
    gram = model.first_gram(x, chain)
    with deferred_checks():
        expected, _ = layer.data(gram, state)
        compiled.compile_(layer)
        found, _ = layer.data(gram, state)
    assert not counters["graph_break"]
    torch.testing.assert_close(found.ti, expected.ti, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.tt_diag, expected.tt_diag, rtol=1e-4, atol=1e-5)
    for one, other in zip(
        torch.autograd.grad(
            found.ti.square().sum(), list(layer.parameters()), allow_unused=True, retain_graph=True
        ),
        torch.autograd.grad(
            expected.ti.square().sum(), list(layer.parameters()), allow_unused=True
        ),
        strict=True,
    ):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
