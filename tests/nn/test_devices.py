"""Models and generators on different devices. The meta device stands for a GPU: it refuses a
generator of another device just as CUDA does."""

import pytest
import torch

from gramian import SKR
from gramian.gram.random import normals, permutation
from gramian.nn.steps.conv import KernelConv
from gramian.nn.steps.output import GPOutput
from gramian.nn.steps.pooling import NystromMean, SpatialMean
from tests.samples import generator


@pytest.mark.parametrize(
    "step",
    [
        KernelConv(3, 4),
        KernelConv(3, 4, start="near_identity"),
        SpatialMean((3, 2, 4)),
        NystromMean((3, 4)),
    ],
    ids=["conv", "near_identity", "mean", "nystrom"],
)
def test_one_generator_serves_a_model_on_another_device(step):
    with pytest.raises(RuntimeError, match="generator"):
        torch.empty(3, device="meta").normal_(generator=generator())
    step.to("meta").start_(generator())


def test_draws_are_on_the_generators_device():
    assert normals((2, 3), generator(), torch.float64).device.type == "cpu"
    assert sorted(permutation(5, generator()).tolist()) == [0, 1, 2, 3, 4]
    assert SKR().draw_noise(8, generator(), torch.float32).shape == (8, 2)


def test_draws_are_those_of_torch():
    """Start values are what they were: in place and out of place torch draws the same numbers."""
    output = GPOutput(6, 2, start="kernel")
    output.start_(torch.eye(6), generator())
    expected = torch.empty(6, 2).normal_(generator=generator())
    assert torch.equal(output.q_mean, expected)
