"""Generators: everything random is drawn where the generator is, whatever the model's device."""

import pytest
import torch
from torch import nn

from gramian import ConvDKM, ConvDKMConfig, DenseDKM, DenseDKMConfig, Network, NetworkConfig
from gramian.nn.steps.output import GPOutput
from tests.samples import generator

SMALL = {"image_shape": (1, 6, 6), "strides": (2,), "blocks_per_stage": 1}


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (
            ConvDKM.from_config(ConvDKMConfig(**SMALL, num_inducing=(4,), whitening=False)),
            (1, 6, 6),
        ),
        (DenseDKM.from_config(DenseDKMConfig(num_features=3, num_inducing=5)), (3,)),
        (Network(NetworkConfig(**SMALL, widths=(4,))), (1, 6, 6)),
    ],
    ids=["conv", "dense", "network"],
)
def test_one_generator_serves_a_model_on_another_device(model, shape, monkeypatch):
    """No parameter is filled by a generator, which must be on its device, and every draw names the
    generator's device."""
    draws = []

    def watched(real, is_in_place):
        def draw(*args, **kwargs):
            if kwargs.get("generator") is not None:
                draws.append(real.__name__)
                if is_in_place:
                    assert not isinstance(args[0], nn.Parameter)
                else:
                    assert kwargs["device"] == kwargs["generator"].device
            return real(*args, **kwargs)

        return draw

    for name in ("normal_", "uniform_", "random_"):
        monkeypatch.setattr(torch.Tensor, name, watched(getattr(torch.Tensor, name), True))
    for name in ("randn", "rand", "randperm", "randint"):
        monkeypatch.setattr(torch, name, watched(getattr(torch, name), False))
    x = torch.ones(20, *shape) + torch.arange(20).view(-1, *[1] * len(shape))
    model.initialise_(x, generator())
    model.train().draw_noise(generator())
    model.draw_samples(3, generator())
    assert len(draws) >= 3


def test_draws_are_those_of_torch():
    """Start values are what they were: in place and out of place torch draws the same numbers."""
    output = GPOutput(6, 2, start="kernel")
    output.start_(torch.eye(6), generator())
    expected = torch.empty(6, 2).normal_(generator=generator())
    assert torch.equal(output.q_mean, expected)
