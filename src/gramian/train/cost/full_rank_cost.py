"""What training a model without inducing points costs, estimated in advance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from gramian.nn.full_rank.full_rank_config import FullRankConfig, num_pixels
from gramian.nn.likelihoods.categorical import PORTION
from gramian.nn.likelihoods.likelihood import MOST_NOISE
from gramian.train.runtime.memory import free_bytes

HEAP_BLOCK, GAPS = 2**25, 2.3
"""The C library has tensors below 32 MiB in one heap, where the gaps between them add up to more
than the tensors themselves (measured: 1.7 to 3 times the tensors, with version 2.36), and gives
each larger one back to the system when it is freed."""

PAIRS = 10
"""Steps that L-BFGS remembers."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What training needs: memory in all, and work an iteration (objective, gradient, L-BFGS).

    Attributes:
        bytes: besides the program's own, before there is a model.
        flops: of matrix products, Cholesky factors and triangular solves.
        passes: numbers that all other operations read or write.

    Example:
        >>> from gramian import FullRankConfig, estimate
        >>> estimate(FullRankConfig(), num_data=1000)
        Cost(bytes=564000000, flops=24666666666, passes=421000000)
    """

    bytes: int
    flops: int
    passes: int


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
    float64. A kernel keeps k matrices and takes c passes (``Kernel.cost``); b bytes a number:

        bytes  = 8 (2·PAIRS + 16) n + b g (Σ_ℓ (k N_{ℓ−1}² + 4 N_ℓ²) + k P² + max(5 N_0², o P²))
        flops  = Σ_ℓ 61/3 N_ℓ³ + u P³
        passes = Σ_ℓ (c N_{ℓ−1}² + (55 + 18 + 16 f) N_ℓ²) + (c + v) P² + 25·PAIRS·n

    with o, u, v = 7, 13/3, 24 for a Gaussian output, 10, 61/3, 70 for a categorical one, and C
    times 6, 13/3, 21 for a Dirichlet one and where C targets have a noise each. g is GAPS for small
    matrices, or 1. A Cholesky factor with its gradient is 13/3 N³, a product 6 N³, a triangular
    solve 4 N³; 18 + 16 f is for f × f filters. Without ``relative`` the 61/3 are 46/3 of a layer
    and 28/3 of the output. For ν = ∞, a layer has only k, c and f. With a GPU the vectors, in the
    host's memory, are counted too.

    Args:
        config: the settings.
        num_data: P.
        space: (H, W) of images, None for rows.
        dtype: of the data.
        num_outputs: C; None for ``config.num_classes``, or 1.

    Example:
        >>> from gramian import FullRankConfig, estimate
        >>> cost = estimate(FullRankConfig(), num_data=50, space=(8, 8))  # N = 3,200 pixels
        >>> round(cost.bytes / 1e9, 2), round(cost.flops / 1e9)
        (3.85, 666)
    """
    P, C, b = num_data, num_outputs or config.num_classes or 1, dtype.itemsize
    kept, kernel_passes = config.kernel_class().cost
    learned = config.nu < math.inf
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
        case "gaussian" if C == 1 or config.shared_noise:
            work = held(7, P**2)
            thirds += 13 * P**3
            passes += 24 * P**2
        case "categorical":
            n += P**2 + P * C
            samples = config.num_samples * P * C
            noise = samples if samples <= MOST_NOISE else config.num_samples * C
            memory += held(1, noise) + held(4, max(PORTION, config.num_samples * C) + P * C)
            work = held(10, P**2)
            thirds += (61 if config.relative else 28) * P**3
            passes += 70 * P**2 + 17 * samples
        case "dirichlet" | "gaussian":
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
    num_outputs: int,
    memory: int | None = None,
) -> None:
    """Raise MemoryError if training on ``x`` needs more than ``memory``, or than is free."""
    space = (x.shape[2], x.shape[3]) if x.ndim == 4 else None
    limit = free_bytes(x.device) if memory is None else memory
    cost = estimate(config, len(x), space, x.dtype, num_outputs)
    if cost.bytes > limit:
        P, S = len(x), num_pixels(space)
        raise MemoryError(
            f"a full-rank model of P = {P:,} training points with S = {S:,} pixels has matrices of "
            f"{P * S:,} × {P * S:,} and needs about {cost.bytes / 1e9:.3g} GB, but "
            f"{limit / 1e9:.3g} GB are {'free' if memory is None else 'allowed'}: take fewer "
            "training points, or use the inducing-point models DenseDKM and ConvDKM"
        )
