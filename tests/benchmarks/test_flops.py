"""The counter of operations: formulas by hand, and a model without values."""

from contextlib import ExitStack

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import conv2d

from benchmarks.flops import Healthy, count_flops
from gramian.nn.conv_dkm import ConvDKM, ConvDKMConfig
from gramian.train.objective import objective
from paper.cost.step_cost import dkm_step
from tests.samples import generator

SMALL = ConvDKMConfig(
    image_shape=(3, 8, 8), num_inducing=(16,), strides=(2,), blocks_per_stage=1, num_samples=10
)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator())


def lower(*shape: int) -> torch.Tensor:
    return torch.eye(shape[-1]).expand(shape).contiguous()


@pytest.mark.parametrize(
    ("function", "flops"),
    [
        (lambda: random(3, 4) @ random(4, 5), 2 * 3 * 4 * 5),
        (lambda: torch.mm(random(3, 4), random(4, 5), out=torch.empty(3, 5)), 2 * 3 * 4 * 5),
        (lambda: torch.addmm(random(3, 5), random(3, 4), random(4, 5)), 2 * 3 * 4 * 5),
        (lambda: random(3, 5).addmm_(random(3, 4), random(4, 5)), 2 * 3 * 4 * 5),
        (lambda: random(2, 3, 4) @ random(2, 4, 5), 2 * 2 * 3 * 4 * 5),
        (lambda: random(2, 3, 5).baddbmm_(random(2, 3, 4), random(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
        (lambda: random(3, 4) @ random(4), 2 * 3 * 4),
        (lambda: torch.mv(random(3, 4), random(4), out=torch.empty(3)), 2 * 3 * 4),
        (lambda: random(3).addmv_(random(3, 4), random(4)), 2 * 3 * 4),
        (lambda: random(4) @ random(4), 2 * 4),
        (lambda: torch.linalg.cholesky_ex(lower(2, 6, 6)), 2 * 6**3 // 3),
        (lambda: torch.linalg.solve_triangular(lower(6, 6), random(6, 5), upper=False), 6**2 * 5),
        (
            lambda: torch.linalg.solve_triangular(
                lower(6, 6), random(5, 6), upper=True, left=False
            ),
            6**2 * 5,
        ),
        (lambda: conv2d(random(2, 3, 8, 8), random(5, 3, 3, 3), padding=1), 2 * 2 * 64 * 27 * 5),
        (lambda: random(3, 4) * random(3, 4), 0),
    ],
)
def test_formulas(function, flops):
    assert count_flops(function) == flops


def test_the_gradients_of_a_convolution_are_two_more():
    x, w = random(2, 3, 8, 8).requires_grad_(), random(5, 3, 3, 3).requires_grad_()
    once = 2 * 2 * 64 * 27 * 5
    assert count_flops(lambda: conv2d(x, w, padding=1).sum().backward()) == 3 * once


def training_step(model: ConvDKM, batch: int) -> None:
    """Inducing chain, forward, objective and backward, on the default device."""
    device = torch.empty(0).device
    noise = {path: z.to(device) for path, z in model.draw_noise(generator()).items()}
    samples = model.draw_samples(batch, generator()).to(device)
    images, labels = torch.zeros(batch, *model.data_shape), torch.zeros(batch, dtype=torch.int64)
    objective(model(images, noise), model.likelihood, labels, samples, 50_000).loss.backward()


def count_training_step(config: ConvDKMConfig, batch: int, *modes) -> int:
    """On tensors without values."""
    with ExitStack() as stack:
        for mode in (*modes, Healthy()):
            stack.enter_context(mode)
        model = ConvDKM.from_config(config)
        return count_flops(lambda: training_step(model, batch))


def test_no_values_are_needed():
    real = ConvDKM.from_config(SMALL)
    real.initialise_(random(20, 3, 8, 8), generator())
    expected = count_flops(lambda: training_step(real, 4))
    assert expected > 0
    assert count_training_step(SMALL, 4, torch.device("meta")) == expected
    assert count_training_step(SMALL, 4, FakeTensorMode()) == expected
    assert dkm_step(SMALL, 4, recompute=False).flops == expected  # as the simulation counts
