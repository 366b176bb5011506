"""Forward and backward of each step of a layer, of a residual block and of the output, by itself.

``python -m benchmarks.steps [NAME ...]`` prints a table; all weights are start values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils.benchmark import Compare, Timer

from gramian.gram.blocks import GramBlocks
from gramian.nn.conv_dkm import ConvDKMConfig
from gramian.nn.layers import grams_of
from gramian.nn.steps.conv import KernelConv
from gramian.nn.steps.gram_layer import GramLayer
from gramian.nn.steps.kernels import KERNELS, Kernel
from gramian.nn.steps.norm import GramNorm
from gramian.nn.steps.output import GPOutput
from gramian.nn.steps.pooling import NystromMean, SpatialMean
from gramian.train.runtime.seeds import generator

P, BATCH, SPACE = 64, 64, (16, 16)
SEED = 0
Forward = Callable[[GramBlocks], list[Tensor]]


def random_gram(*shape: int) -> GramBlocks:
    """Blocks of a random Gram matrix of inducing points and of data of a shape, with gradients."""
    draw = generator(SEED, "steps")
    features, data = (
        torch.randn(P, 2 * P, generator=draw),
        torch.randn(*shape, 2 * P, generator=draw),
    )
    blocks = features @ features.mT, data @ features.mT, data.square().sum(-1)
    return GramBlocks(*((block / (2 * P)).requires_grad_() for block in blocks))


def tensors(gram: GramBlocks) -> list[Tensor]:
    """All blocks."""
    return [gram.ii, gram.ti, gram.tt_diag]


def plain(module: Callable[[GramBlocks], GramBlocks]) -> Forward:
    """A step that needs no noise and has no KL."""
    return lambda gram: tensors(module(gram))


def kernel(kind: type[Kernel]) -> Forward:
    """A kernel."""
    return plain(kind())


def conv(filter_size: int, stride: int) -> Forward:
    """A kernel convolution."""
    module = KernelConv(P, P, filter_size, stride)
    module.start_(generator(SEED, "conv"))
    return plain(module)


def gram_layer() -> Forward:
    """A Gram layer with SKR's noise."""
    layer = GramLayer(P)
    noise = layer.skr.draw_noise(P, generator(SEED, "noise"), torch.float32)

    def forward(gram: GramBlocks) -> list[Tensor]:
        blocks, kl = layer(gram, noise)
        return [*tensors(blocks), kl]

    return forward


def residual_block(stride: int) -> Forward:
    """Two layers and a shortcut, with SKR's noise."""
    block = ConvDKMConfig().build_block(P, P, (SPACE[0] // stride, SPACE[1] // stride), stride)
    for module in block.modules():
        if isinstance(module, KernelConv):
            module.start_(generator(SEED, "conv"))
    noise = {
        path: layer.skr.draw_noise(P, generator(SEED, "noise"), torch.float32)
        for path, layer in grams_of(block).items()
    }
    with torch.no_grad():
        block.start_(random_gram(1).ii, noise)

    def forward(gram: GramBlocks) -> list[Tensor]:
        state = block.inducing(gram.ii, noise)
        blocks, _ = block.data(gram, state)
        return [*tensors(blocks), *block.kl(state).values()]

    return forward


def output() -> Forward:
    """The output layer."""
    layer = GPOutput(P, 10)
    layer.start_(random_gram(1).ii.detach(), generator(SEED, "output"))

    def forward(gram: GramBlocks) -> list[Tensor]:
        marginals, kl = layer(gram)
        return [marginals.mean, marginals.var, kl]

    return forward


STEPS: dict[str, Callable[[], Forward]] = {
    **{f"kernel_{name}": partial(kernel, kind) for name, kind in KERNELS.items()},
    "conv_3x3": lambda: conv(3, 1),
    "conv_3x3_stride2": lambda: conv(3, 2),
    "conv_1x1_stride2": lambda: conv(1, 2),
    "gram_layer": gram_layer,
    "norm": lambda: plain(GramNorm(P, SPACE)),
    "residual_block": lambda: residual_block(1),
    "residual_block_stride2": lambda: residual_block(2),
    "pooling_mean": lambda: plain(SpatialMean()),
    "pooling_nystrom": lambda: plain(NystromMean()),
    "output": output,
}


def forward_and_backward(name: str) -> Callable[[], None]:
    """One pass each way of a step."""
    forward = STEPS[name]()
    gram = random_gram(BATCH) if name == "output" else random_gram(BATCH, *SPACE)
    return lambda: torch.stack([tensor.sum() for tensor in forward(gram)]).sum().backward()


def measure(names: list[str], seconds: float = 1.0) -> Compare:
    """Times of steps, all if none is named."""
    threads = torch.get_num_threads()
    timers = [
        Timer(
            "step()",
            globals={"step": forward_and_backward(name)},
            num_threads=threads,
            label=f"forward and backward, {P} inducing points, {BATCH} images of {SPACE}",
            sub_label=name,
            description="time",
        )
        for name in names or STEPS
    ]
    return Compare([timer.blocked_autorange(min_run_time=seconds) for timer in timers])


if __name__ == "__main__":
    measure(sys.argv[1:]).print()
