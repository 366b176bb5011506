"""The network baseline behaves like any other model, and is the network that it says it is."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from gramian.nn.baseline.network import Network, NetworkConfig
from gramian.train.objective import objective
from tests.samples import generator

SMALL = NetworkConfig(image_shape=(3, 8, 8), num_outputs=4, widths=(6, 8), strides=(1, 2))


def network(config=SMALL, dtype=torch.float64) -> Network:
    model = Network(config).to(dtype)
    model.initialise_(images(), generator(0))
    return model


def images(n=7, seed=0):
    return torch.randn(n, 3, 8, 8, generator=generator(seed), dtype=torch.float64)


def test_the_objective_is_minus_the_cross_entropy():
    model, y = network(), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    terms = objective(
        model(images()), model.likelihood, y, model.draw_samples(7, generator(1)), num_data=100
    )
    logits = model.network(images())
    torch.testing.assert_close(terms.loss, cross_entropy(logits, y))
    terms.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_weights_start_within_pytorchs_bounds_and_depend_on_the_generator_only():
    a, b = network(), network()
    other = Network(SMALL).double()
    other.initialise_(images(), generator(5))
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q)
        if p.ndim > 1:
            assert p.abs().max() <= p[0].numel() ** -0.5, name
            assert p.std() > 0.4 * p[0].numel() ** -0.5
    assert not torch.equal(a.network.stem.weight, other.network.stem.weight)


def test_strides_and_widths_are_those_of_the_settings():
    model = network(replace(SMALL, stem_stride=2, blocks_per_stage=1))
    sizes = []
    for block in model.network.blocks:
        block.register_forward_hook(lambda *seen: sizes.append(tuple(seen[-1].shape[1:])))
    model.eval()(images())
    assert sizes == [(6, 4, 4), (8, 2, 2)]


def test_evaluation_does_not_depend_on_the_batch_but_training_does():
    model = network()
    model(images(seed=3))
    predict, x = model.for_prediction(), images()
    torch.testing.assert_close(predict(x).mean[:2], predict(x[:2]).mean)
    assert not torch.allclose(model(x).marginals.mean[:2], model(x[:2]).marginals.mean)
    assert model.training
    assert predict(x).var.eq(0).all()


def test_estimated_statistics_are_those_of_the_data_however_they_are_split():
    model = network()
    before = [buffer.clone() for buffer in model.running_statistics()]
    model(images())
    moved = model.running_statistics()
    assert any(not torch.equal(a, b) for a, b in zip(before, moved, strict=True))
    x = torch.cat([images(seed=1), 9 * images(2, seed=2) + 5, images(seed=3)])
    norm = model.network.blocks[0].norm1
    seen = model.network.stem(x)
    for sizes in ([16], [7, 9], [15, 1]):
        model.estimate_statistics_(x.split(sizes))
        torch.testing.assert_close(norm.running_mean, seen.mean((0, 2, 3)))
        torch.testing.assert_close(norm.running_var, seen.var((0, 2, 3), correction=0))
    assert norm.momentum == 0.1
    assert not norm._forward_pre_hooks


def test_bad_input():
    with pytest.raises(RuntimeError, match="no start values yet"):
        Network(SMALL).double()(images())
    with pytest.raises(ValueError, match="images"):
        network()(torch.zeros(2, 1, 8, 8, dtype=torch.float64))
    with pytest.raises(ValueError, match="one stride per stage"):
        NetworkConfig(widths=(4, 8), strides=(1,))
    with pytest.raises(ValueError, match="widths must be positive"):
        NetworkConfig(widths=(), strides=())
    with pytest.raises(ValueError, match="2 or more"):
        NetworkConfig(num_outputs=1)
