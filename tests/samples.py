"""Random Gram blocks that are those of real features, and lists of all steps to check."""

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from gramian import SKR, GramBlocks, NormChoice
from gramian.nn.steps.centre import Centre
from gramian.nn.steps.conv import KernelConv
from gramian.nn.steps.gram_layer import GramLayer
from gramian.nn.steps.kernels import KERNELS, Bandwidth, Kernel
from gramian.nn.steps.norm import GramNorm
from gramian.nn.steps.pooling import NystromMean, SpatialMean

Shape = tuple[int, ...]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_features(num_inducing: int, data: Shape, seed: int, dtype=torch.float64):
    """Inducing features [P, N] and data features [*data, N], with more features than points."""
    draw = generator(seed)
    N = num_inducing + 3
    F_i = torch.randn(num_inducing, N, generator=draw, dtype=torch.float64)
    F_t = torch.randn(*data, N, generator=draw, dtype=torch.float64)
    return F_i.to(dtype), F_t.to(dtype)


def random_gram(num_inducing: int, data: Shape, seed: int, dtype=torch.float64) -> GramBlocks:
    F_i, F_t = random_features(num_inducing, data, seed)
    N = F_i.shape[1]
    gram = GramBlocks(F_i @ F_i.mT / N, F_t @ F_i.mT / N, F_t.square().sum(-1) / N)
    return GramBlocks(gram.ii.to(dtype), gram.ti.to(dtype), gram.tt_diag.to(dtype))


def random_psd(size: int, seed: int) -> Tensor:
    """A well conditioned positive definite matrix."""
    return random_gram(size, (1,), seed).ii


@st.composite
def grams(draw: st.DrawFn, spatial: bool = False) -> GramBlocks:
    """Gram blocks of dense data or of images."""
    space = draw(st.sampled_from([(1, 1), (2, 3), (4, 4)] if spatial else [(), (3,), (2, 4)]))
    P, B = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    return random_gram(P, (B, *space), draw(st.integers(0, 10_000)))


def random_(module: nn.Module, seed: int = 0) -> nn.Module:
    """Move all parameters a little, so that no test passes only at a special start."""
    draw = generator(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
            parameter.add_(0.3 * noise.to(parameter.dtype))
    return module


class WithoutKL(nn.Module):
    """A Gram layer as a plain map of blocks, with fixed noise if it needs some."""

    def __init__(self, layer: GramLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, gram: GramBlocks) -> GramBlocks:
        P = len(gram.ii)
        noise = None
        if self.layer.samples:
            noise = self.layer.skr.draw_noise(P, generator(1), gram.ii.dtype)
        return self.layer(gram, noise)[0]


def _started(conv: nn.Module) -> nn.Module:
    conv.start_(generator(2))
    return conv


P, SPACE = 4, (3, 4)

KERNEL_STEPS: dict[str, Callable[[], Kernel]] = {
    **KERNELS,
    **{
        f"{name}_bandwidth": lambda kernel=kernel: kernel(bandwidth=Bandwidth(3.0, learned=True))
        for name, kernel in KERNELS.items()
        if kernel.has_bandwidth
    },
    "sum": lambda: KERNELS["arc_cosine"]() + KERNELS["matern32"](),
    "product": lambda: KERNELS["normalized_gaussian"]() * KERNELS["squared_exponential"](),
}

GRAM_STEPS: dict[str, Callable[[], nn.Module]] = {
    "gram": lambda: WithoutKL(GramLayer(P, skr=SKR.off())),
    "gram_skr_train": lambda: WithoutKL(GramLayer(P, skr=SKR(0.5))),
    "gram_skr_eval": lambda: WithoutKL(GramLayer(P, skr=SKR(0.5))).eval(),
    "gram_jitter_only": lambda: WithoutKL(GramLayer(P, skr=SKR(None))),
    "gram_dropped": lambda: WithoutKL(GramLayer(P, skr=SKR(0.5), unexplained="dropped")),
    "gram_nngp": lambda: WithoutKL(GramLayer(P, nu=float("inf"), skr=SKR.off())),
}

NORM_STEPS: dict[str, Callable[[], nn.Module]] = {
    f"norm_{data}_{statistics}": lambda data=data, statistics=statistics: GramNorm(
        P, SPACE, NormChoice(data=data, scale_inducing="local", statistics=statistics)
    ).train(statistics == "batch")
    for data in ("none", "global", "local", "location", "image")
    for statistics in ("running", "batch")
}

SPATIAL_STEPS: dict[str, Callable[[], nn.Module]] = {
    "conv_3x3": lambda: _started(KernelConv(P, 5)),
    "conv_3x3_stride2": lambda: _started(KernelConv(P, 3, stride=2)),
    "conv_1x1_stride2": lambda: _started(KernelConv(P, P, 1, 2)),
    "conv_5x5": lambda: _started(KernelConv(P, 3, 5)),
    "conv_2x2_stride3": lambda: _started(KernelConv(P, 3, 2, 3)),
    "pool_mean": lambda: SpatialMean(),
    "pool_nystrom": lambda: NystromMean(),
    "pool_mean_mixing": lambda: _started(SpatialMean((3, 12, P))),
    "pool_nystrom_mixing": lambda: _started(NystromMean((3, P))),
}

ALL_STEPS: dict[str, Callable[[], nn.Module]] = {
    "centre": lambda: Centre(P),
    **KERNEL_STEPS,
    **GRAM_STEPS,
    **NORM_STEPS,
    **SPATIAL_STEPS,
}


def flatten(gram: GramBlocks) -> tuple[Tensor, Tensor, Tensor]:
    return gram.ii, gram.ti, gram.tt_diag
