"""Settings of a model without inducing points, and what it costs, said before it is built."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

import torch
from torch import Tensor

from gramian.gram.conditional import VarianceCheck
from gramian.gram.divergence import Divergence
from gramian.gram.full_blocks import PairConvolution
from gramian.gram.skr import SKR
from gramian.nn.checks import check_features, check_labels
from gramian.nn.gram_layer import GramLayer
from gramian.nn.inputs import Lengthscales
from gramian.nn.kernel_config import KernelConfig
from gramian.nn.kernels import KERNELS, Kernel, Linear
from gramian.nn.likelihoods import Categorical, Estimator, Gaussian
from gramian.nn.output import GPOutput, RelativeOutput

FullRankLikelihood = Literal["gaussian", "categorical", "dirichlet"]


@dataclass(frozen=True, kw_only=True)
class FullRankConfig(KernelConfig):
    """A deep kernel machine without inducing points (Eqs. dkm_obfr and cdkm_fr_ob).

    The kernel may also be ``linear``. Each new point has a jitter of its own, also one that is a
    copy of a training point.

    Args (besides those of KernelConfig):
        num_layers: Gram layers. None at all is a Gaussian process with this kernel.
        nu: ν, the pull of the Gram matrices towards the kernel. Infinity is the NNGP.
        divergence: of the Gram layers, and of the categorical output.
        relative: learn each G, and q of classes, in coordinates of the kernel that it meets (see
            ``FullRankLayer``), which a search wants; otherwise as the inducing-point models do.
        lengthscales: learned scales of the features (channels of images): none, one, or one each.
        likelihood: ``gaussian`` with the output in closed form; for classes, ``categorical`` by
            variational inference, or ``dirichlet``, a regression in closed form.
        num_classes: C of a classification; None for the largest label plus 1.
        alpha: of the Dirichlet distributions, which have 1 + α for the label and α elsewhere.
        noise_var: start value of the Gaussian likelihood's variance σ².
        num_samples: Monte-Carlo samples of a softmax.
        estimator: of the categorical expected log-likelihood.
        filter_size: f of the convolutions, odd. Images only.
        strides: of the convolutions, one a layer; () for 1 in all layers. Images only.
        variance_check: what to do about negative variances.
    """

    num_layers: int = 1
    nu: float = 1.0
    divergence: Divergence = "exact"
    relative: bool = True
    lengthscales: Lengthscales = "none"
    likelihood: FullRankLikelihood = "gaussian"
    num_classes: int | None = None
    alpha: float = 0.01
    noise_var: float = 0.1
    num_samples: int = 1000
    estimator: Estimator = "exact"
    filter_size: int = 3
    strides: tuple[int, ...] = ()
    variance_check: VarianceCheck = VarianceCheck()

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        super().__post_init__()
        if not self.nu >= 0:
            raise ValueError(f"nu must be 0 or more, or infinity, got {self.nu}")
        if self.num_layers < 0 or self.num_samples < 1:
            raise ValueError(
                "num_layers must be 0 or more and num_samples 1 or more, "
                f"got {self.num_layers} and {self.num_samples}"
            )
        if self.num_classes is not None and self.num_classes < 2:
            raise ValueError(f"num_classes must be 2 or more, or None, got {self.num_classes}")
        for name in ("noise_var", "alpha"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.filter_size < 1 or self.filter_size % 2 == 0:
            raise ValueError(f"filter_size must be odd, to have a centre, got {self.filter_size}")
        if self.strides and (len(self.strides) != self.num_layers or min(self.strides) < 1):
            raise ValueError(
                f"strides must be () or one positive number for each of {self.num_layers} layers, "
                f"got {self.strides}"
            )

    @classmethod
    def known_kernels(cls) -> dict[str, Callable[..., Kernel]]:
        """What ``kernel`` may name."""
        return {**KERNELS, "linear": Linear}

    def build_gram(self, num_points: int) -> GramLayer:
        """A Gram layer over all training points, without noise."""
        return GramLayer(num_points, self.nu, self.divergence, SKR.off(), self.variance_check)

    def build_likelihood(self, num_outputs: int) -> Categorical | Gaussian:
        """The likelihood."""
        match self.likelihood:
            case "gaussian":
                return Gaussian(self.noise_var)
            case "categorical" | "dirichlet":
                return Categorical(num_outputs, self.num_samples, self.estimator)
            case _:
                assert_never(self.likelihood)

    def build_output(self, num_data: int, num_outputs: int) -> GPOutput:
        """The output of a categorical model: q(f_c) = N(μ_c, A), its KL summed over the classes."""
        return (RelativeOutput if self.relative else GPOutput)(
            num_data,
            num_outputs,
            self.divergence,
            tempered=False,
            variance_check=self.variance_check,
            start="kernel",
        )

    def convolutions(self, space: tuple[int, int] | None) -> list[PairConvolution | None]:
        """Γ of each layer for images of (H, W) pixels; None for rows, which have none."""
        if space is None:
            return [None] * self.num_layers
        convolutions: list[PairConvolution | None] = []
        for stride in self.strides or (1,) * self.num_layers:
            convolution = PairConvolution(space, self.filter_size, stride)
            convolutions.append(convolution)
            space = convolution.output_space
        return convolutions


def check_training_data(x: object, y: object, axes: tuple[str, ...], config: FullRankConfig) -> int:
    """Raise unless x and y are training data for these settings; return C."""
    dtype = x.dtype if isinstance(x, Tensor) and x.is_floating_point() else torch.float64
    check_features(x, axes, dtype, axes[0])
    assert isinstance(x, Tensor)
    if config.strides and len(axes) == 2:
        raise ValueError(f"strides are for images; rows have no pixels, got {config.strides}")
    if config.likelihood == "gaussian":
        check_features(y, (len(x), "outputs"), dtype, "targets")
        assert isinstance(y, Tensor)
        return y.shape[1]
    if not isinstance(y, Tensor):
        raise TypeError(f"labels must be a torch tensor, got {type(y).__name__}")
    C = config.num_classes or (int(y.max()) + 1 if y.numel() else 1)
    check_labels(y, C, len(x))
    if y.min() == y.max():
        raise ValueError(
            f"labels must be of 2 classes or more, got {len(y)} times class {int(y.max())}"
        )
    return C


def num_pixels(space: tuple[int, int] | None) -> int:
    """S = H·W; 1 for rows."""
    return 1 if space is None else space[0] * space[1]


HEAP_BLOCK, GAPS = 2**25, 2.3
"""The C library has tensors below 32 MiB in one heap, where the gaps between them add up to more
than the tensors themselves (measured: 1.7 to 3 times the tensors, with version 2.36), and gives
each larger one back to the system when it is freed."""

KERNEL_COST = {
    "linear": (1, 24),
    "squared_exponential": (2, 45),
    "normalized_gaussian": (2, 46),
    "matern32": (4, 81),
    "matern52": (5, 100),
    "arc_cosine": (6, 148),
}
"""Matrices that a kernel keeps for its gradient, and its passes; another kernel has the most."""

PAIRS = 10
"""Steps that L-BFGS remembers."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What training needs: memory in all, and work an iteration (objective, gradient, L-BFGS)."""

    bytes: int  # besides the program's own, before there is a model
    flops: int  # of matrix products, Cholesky factors and triangular solves
    passes: int  # numbers that all other operations read or write


def estimate(
    config: FullRankConfig,
    num_data: int,
    space: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float64,
    num_outputs: int | None = None,
) -> Cost:
    """The cost of ``maximise_`` for P training images of ``space`` = (H, W) pixels, or P rows.

    N_ℓ = P·H_ℓ·W_ℓ points are in the Gram matrix of layer ℓ. The n = Σ_ℓ N_ℓ² parameters (and
    P² + P·C of a categorical output with its S·P·C samples) are kept in 2·PAIRS + 16 vectors of
    float64. A kernel keeps k matrices and takes c passes (``KERNEL_COST``); b bytes a number:

        bytes  = 8 (2·PAIRS + 16) n + b g (Σ_ℓ (k N_{ℓ−1}² + 4 N_ℓ²) + k P² + max(5 N_0², o P²))
        flops  = Σ_ℓ 61/3 N_ℓ³ + u P³
        passes = Σ_ℓ (c N_{ℓ−1}² + (55 + 18 + 16 f) N_ℓ²) + (c + v) P² + 25·PAIRS·n

    with o, u, v = 7, 13/3, 24 for a Gaussian output, 10, 61/3, 70 for a categorical one, and C
    times 6, 13/3, 21 for a Dirichlet one. g is GAPS for small matrices, or 1. A Cholesky factor
    with its gradient is 13/3 N³, a product 6 N³, a triangular solve 4 N³; 18 + 16 f is for f × f
    filters. Without ``relative`` the 61/3 are 46/3 of a layer and 28/3 of the output. For ν = ∞, a
    layer has only k, c and f. With a GPU the vectors, in the host's memory, are counted too.

    Args:
        config: the settings.
        num_data: P.
        space: (H, W) of images, None for rows.
        dtype: of the data.
        num_outputs: C; None for ``config.num_classes``, or 1.
    """
    P, C, b = num_data, num_outputs or config.num_classes or 1, dtype.itemsize
    learned, (kept, kernel_passes) = config.nu < math.inf, _kernel_cost(config.kernel)
    N = N_0 = P * num_pixels(space)
    n = 0
    memory, thirds, passes = 0.0, 0, 0

    def held(count: int, size: int) -> float:
        return count * size * b * (GAPS if size * b < HEAP_BLOCK else 1.0)

    for conv in config.convolutions(space):
        memory += held(kept, N**2)
        passes += kernel_passes * N**2
        if conv is not None:
            N = P * num_pixels(conv.output_space)
            passes += (18 + 16 * conv.filter_size) * N**2
        if learned:
            n += N**2
            memory += held(4, N**2)
            thirds += (61 if config.relative else 46) * N**3
            passes += 55 * N**2
    memory += held(kept, P**2)
    passes += kernel_passes * P**2
    match config.likelihood:
        case "gaussian":
            work = held(7, P**2)
            thirds += 13 * P**3
            passes += 24 * P**2
        case "categorical":
            n += P**2 + P * C
            samples = config.num_samples * P * C
            memory += held(5, samples)
            work = held(10, P**2)
            thirds += (61 if config.relative else 28) * P**3
            passes += 70 * P**2 + 17 * samples
        case "dirichlet":
            work = held(6, C * P**2)
            thirds += 13 * C * P**3
            passes += 21 * C * P**2
        case _:
            assert_never(config.likelihood)
    memory += max(work, held(5, N_0**2)) + 8 * (2 * PAIRS + 16) * n
    return Cost(round(memory), thirds // 3, passes + 25 * PAIRS * n)


def check_memory(
    config: FullRankConfig,
    x: Tensor,
    space: tuple[int, int] | None,
    num_outputs: int,
    memory: int | None,
) -> None:
    """Raise MemoryError if training on ``x`` needs more than ``memory``, or than is free."""
    limit = free_memory(x.device) if memory is None else memory
    cost = estimate(config, len(x), space, x.dtype, num_outputs)
    if limit is not None and cost.bytes > limit:
        P, S = len(x), num_pixels(space)
        raise MemoryError(
            f"a full-rank model of P = {P:,} training points with S = {S:,} pixels has matrices of "
            f"{P * S:,} × {P * S:,} and needs about {cost.bytes / 1e9:.3g} GB, but "
            f"{limit / 1e9:.3g} GB are {'free' if memory is None else 'allowed'}: take fewer "
            "training points, or use the inducing-point models DenseDKM and ConvDKM"
        )


def _kernel_cost(name: str) -> tuple[int, int]:
    return KERNEL_COST.get(name, max(KERNEL_COST.values()))


def free_memory(device: torch.device) -> int | None:
    """Bytes free on a CUDA device, or in this machine by /proc/meminfo; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    available = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(available[0]) if available else None
