"""How fast this machine is, measured, so that a cost can be said in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gramian.gram.linalg import cholesky, solve_lower
from gramian.nn.steps.kernels import NormalizedGaussian
from gramian.train.cost.full_rank_cost import Cost

LARGEST_PRODUCT, LARGEST_PASS = 700, 2500
"""Matrices that are measured have at most so many rows: about a second for all, in float64."""

TURNS = 4


@dataclass(frozen=True, slots=True)
class Machine:
    """Speeds of one device with numbers of one type.

        seconds = flops / flops_per_second + passes / numbers_per_second

    Attributes:
        flops_per_second: of products and factorisations.
        numbers_per_second: that all other operations read or write.

    Example:
        >>> from gramian import FullRankConfig, Machine, estimate
        >>> machine = Machine(flops_per_second=5e10, numbers_per_second=1e9)  # or Machine.measure
        >>> round(machine.seconds(estimate(FullRankConfig(), num_data=1000)), 2)  # an iteration
        0.91
    """

    flops_per_second: float
    numbers_per_second: float

    @classmethod
    def measure(
        cls,
        size: int,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        clock: Callable[[], float] = time.perf_counter,
    ) -> Machine:
        """The speeds for size × size matrices: the best of a few turns, after one that warms up.

        FLOPs are timed as a Gram layer has them, L_K, L_G = L_K S, L_K⁻¹ L_G and L_G L_Gᵀ with
        their gradients, and passes as the normalised Gaussian kernel with its gradient.

        Args:
            size: of the matrices that are to come; large ones are stood for by smaller ones.
            dtype: of the numbers.
            device: where.
            clock: in seconds. With one thread ``time.process_time`` leaves out other programs.
        """
        n, m = min(size, LARGEST_PRODUCT), min(size, LARGEST_PASS)
        S, G = _matrix(n, dtype, device), _matrix(m, dtype, device)
        kernel = NormalizedGaussian().to(dtype=dtype, device=device)

        def products() -> None:
            L_K = cholesky(S, what="S")
            L_G = L_K @ S
            (solve_lower(L_K, L_G).sum() + (L_G @ L_G.mT).sum()).backward()

        def passes() -> None:
            kernel.inducing(G).sum().backward()

        flops, numbers = 61 * n**3 / 3, NormalizedGaussian.cost[1] * m**2
        return cls(
            flops / _seconds(products, S.device, clock), numbers / _seconds(passes, S.device, clock)
        )

    def seconds(self, cost: Cost) -> float:
        """Of one iteration."""
        return cost.flops / self.flops_per_second + cost.passes / self.numbers_per_second


def _matrix(size: int, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """Positive definite, and without zeros."""
    near = torch.linspace(0, 3, size, dtype=dtype, device=device)
    K = (near[:, None] - near).abs().neg().exp() + torch.eye(size, dtype=dtype, device=device)
    return K.requires_grad_()


def _seconds(
    function: Callable[[], None], device: torch.device, clock: Callable[[], float]
) -> float:
    """The shortest time of a call."""
    times = []
    for _ in range(TURNS):
        started = clock()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(clock() - started)
    return min(times[1:])
