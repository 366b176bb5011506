"""Times of functions that take turns, so that a slow moment of the machine meets all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

WARM_UPS = 3
GEMM_SIZE = 2048

Seconds = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Times of two functions that took turns, and the ratios of each turn's two."""

    dkm: list[float]
    network: list[float]

    @property
    def ratios(self) -> list[float]:
        """DKM over network, turn by turn."""
        return [ours / theirs for ours, theirs in zip(self.dkm, self.network, strict=True)]

    def seconds(self) -> dict[str, float]:
        """Median time of each."""
        return {"dkm": median(self.dkm), "network": median(self.network)}

    def ratio(self) -> float:
        """Median ratio."""
        return median(self.ratios)

    def spread(self) -> dict[str, float]:
        """Quartiles and extremes of the ratios."""
        levels = {"min": 0.0, "quantile25": 0.25, "quantile75": 0.75, "max": 1.0}
        return {name: float(np.quantile(self.ratios, level)) for name, level in levels.items()}


def compare(
    functions: Mapping[str, Callable[[], object]], repeats: int, calls: int = 1
) -> Comparison:
    """Let the functions ``dkm`` and ``network`` take turns; a time is that of one call.

    Args:
        functions: what to call, by name.
        repeats: turns that count, after a few that do not.
        calls: calls per turn, for functions so short that one call says little.
    """
    times: Seconds = {name: [] for name in functions}
    for turn in range(WARM_UPS + repeats):
        for name, function in functions.items():
            started = time.perf_counter()
            for _ in range(calls):
                function()
            if turn >= WARM_UPS:
                times[name].append((time.perf_counter() - started) / calls)
    return Comparison(times["dkm"], times["network"])


def gemm_gflops(repeats: int = 4) -> float:
    """The best throughput of a product of two square matrices in float32, in GFLOP/s."""
    A = torch.ones(GEMM_SIZE, GEMM_SIZE)
    product, best = torch.empty_like(A), float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        torch.mm(A, A, out=product)
        best = min(best, time.perf_counter() - started)
    return 2 * GEMM_SIZE**3 / best / 1e9
