"""Micro-benchmarks: forward and backward of each step of a layer, of the output and of models.

    .venv/bin/pytest benchmarks --benchmark-only -o addopts=

The normal run of the tests does not collect this folder. ``-o addopts=`` leaves out the options of
the tests: processes beside each other, and checks of every shape (``-n0`` leaves out the first
only). ``--benchmark-save NAME`` and ``--benchmark-compare`` compare two states of the code;
``python -m benchmarks`` compares whole steps with those of a network.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from benchmarks.subjects import DKMSubject, NetworkSubject, Subject
from gramian.gram.blocks import GramBlocks
from gramian.nn.conv_dkm import ConvDKMConfig
from gramian.nn.layers import ResidualBlock, grams_of
from gramian.nn.steps.conv import KernelConv
from gramian.nn.steps.gram_layer import GramLayer
from gramian.nn.steps.kernels import KERNELS
from gramian.nn.steps.norm import GramNorm
from gramian.nn.steps.output import GPOutput
from gramian.nn.steps.pooling import NystromMean, SpatialMean
from tests.samples import generator, random_gram

P, BATCH, SPACE = 64, 64, (16, 16)
WIDTHS = (32, 64, 128)

Forward = Callable[[GramBlocks], list[Tensor]]


def pixels() -> GramBlocks:
    """Blocks of images, with gradients."""
    return with_gradients(random_gram(P, (BATCH, *SPACE), seed=0, dtype=torch.float32))


def images() -> GramBlocks:
    """Blocks of pooled images, with gradients."""
    return with_gradients(random_gram(P, (BATCH,), seed=0, dtype=torch.float32))


def with_gradients(gram: GramBlocks) -> GramBlocks:
    """The same blocks as leaves of a graph."""
    ii, ti, tt_diag = (block.requires_grad_() for block in (gram.ii, gram.ti, gram.tt_diag))
    return GramBlocks(ii, ti, tt_diag)


def tensors(gram: GramBlocks) -> list[Tensor]:
    """All blocks."""
    return [gram.ii, gram.ti, gram.tt_diag]


def plain(module: nn.Module) -> Forward:
    """A step that needs no noise and has no KL."""
    return lambda gram: tensors(module(gram))


def conv(filter_size: int, stride: int) -> Forward:
    """A kernel convolution with start values."""
    module = KernelConv(P, P, filter_size, stride)
    module.start_(generator())
    return plain(module)


def gram_layer() -> Forward:
    """A Gram layer with SKR's noise."""
    layer = GramLayer(P)
    noise = layer.skr.draw_noise(P, generator(), torch.float32)

    def forward(gram: GramBlocks) -> list[Tensor]:
        blocks, kl = layer(gram, noise)
        return [*tensors(blocks), kl]

    return forward


def residual_block(stride: int) -> Forward:
    """Two layers and a shortcut, with SKR's noise."""
    space = (SPACE[0] // stride, SPACE[1] // stride)
    block: ResidualBlock = ConvDKMConfig().build_block(P, P, space, stride)
    for module in block.modules():
        if isinstance(module, KernelConv):
            module.start_(generator())
    noise = {
        path: layer.skr.draw_noise(P, generator(), torch.float32)
        for path, layer in grams_of(block).items()
    }
    block.start_grams_(pixels().ii.detach(), noise)

    def forward(gram: GramBlocks) -> list[Tensor]:
        state = block.inducing(gram.ii, noise)
        blocks, _ = block.data(gram, state)
        return [*tensors(blocks), *state.kl.values()]

    return forward


def gp_output() -> Forward:
    """The output layer."""
    output = GPOutput(P, 10)
    output.start_(images().ii.detach(), generator())

    def forward(gram: GramBlocks) -> list[Tensor]:
        marginals, kl = output(gram)
        return [marginals.mean, marginals.var, kl]

    return forward


STEPS: dict[str, Callable[[], Forward]] = {
    **{f"kernel_{name}": lambda kind=kind: plain(kind()) for name, kind in KERNELS.items()},
    "conv_3x3": lambda: conv(3, 1),
    "conv_3x3_stride2": lambda: conv(3, 2),
    "conv_1x1_stride2": lambda: conv(1, 2),
    "gram_layer": gram_layer,
    "norm": lambda: plain(GramNorm(P, SPACE)),
    "residual_block": lambda: residual_block(1),
    "residual_block_stride2": lambda: residual_block(2),
    "pooling_mean": lambda: plain(SpatialMean()),
    "pooling_nystrom": lambda: plain(NystromMean()),
}
SUBJECTS: list[type[Subject]] = [NetworkSubject, DKMSubject]


def forward_and_backward(forward: Forward, gram: GramBlocks) -> None:
    """One pass each way."""
    torch.stack([tensor.sum() for tensor in forward(gram)]).sum().backward()


@pytest.mark.parametrize("name", STEPS)
def test_step(benchmark, name):
    """A step over pixels."""
    benchmark(forward_and_backward, STEPS[name](), pixels())


def test_output(benchmark):
    """The output layer over images."""
    benchmark(forward_and_backward, gp_output(), images())


@pytest.mark.parametrize("build", SUBJECTS)
def test_training_step(benchmark, build):
    """A training step of a small model."""
    subject = build(WIDTHS)
    benchmark(subject.step, subject.batch(BATCH))


@pytest.mark.parametrize("build", SUBJECTS)
@pytest.mark.parametrize("size", [1, BATCH])
@torch.inference_mode()
def test_frozen_model(benchmark, build, size):
    """A prediction of a small model."""
    subject = build(WIDTHS)
    benchmark(subject.freeze(), subject.batch(size).images)
