"""All measurements of one run, as one dictionary.

The two models take turns, so that a slow moment of the machine meets both; a ratio is that of one
turn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.flops import count_flops
from benchmarks.parts import parts_of_step
from benchmarks.process_memory import memory_of_training
from benchmarks.subjects import SEED, SUBJECTS
from gramian.train.record.run_folder import environment
from gramian.train.runtime.memory import keep_freed_memory
from gramian.train.runtime.threads import num_threads

WARM_UPS, LATENCY_REPEATS, LATENCY_CALLS = 3, 30, 5
GEMM_SIZE = 2048
LEVELS = {"min": 0.0, "quantile25": 0.25, "quantile75": 0.75, "max": 1.0}

log = logging.getLogger("gramian")

Result = dict[str, Any]
Functions = Mapping[str, Callable[[], object]]


def run_bench(
    width: int, batch: int, repeats: int, threads: int, *, memory: bool = True, parts: bool = True
) -> Result:
    """Measure the two models; without ``memory`` or ``parts``, these entries are empty.

    Args:
        width: inducing points, and channels, of the first stage; the others have 2 and 4 times it.
        batch: images at once.
        repeats: turns that are measured.
        threads: of PyTorch.
        memory: measure the peak of a new process for each model.
        parts: take a step of the DKM apart.
    """
    keep_freed_memory()
    widths = (width, 2 * width, 4 * width)
    with num_threads(threads):
        subjects = {name: build(widths) for name, build in SUBJECTS.items()}
        steps = {name: partial(each.step, each.batch(batch)) for name, each in subjects.items()}
        gemm = gemm_gflops()
        log.info("training steps: %d of each model", repeats)
        times = in_turns("train", steps, repeats)
        gemm = max(gemm, gemm_gflops())
        flops = {f"{name}_train": count_flops(step) for name, step in steps.items()}
        shares = {
            name: flops[f"{name}_train"] / seconds / gemm / 1e9
            for name, seconds in times["train_seconds"].items()
        }
        log.info("predictions: %d of each model", repeats)
        with torch.inference_mode():
            models = {name: each.freeze() for name, each in subjects.items()}
            batches, singles = (
                {n: partial(m, subjects[n].batch(size).images) for n, m in models.items()}
                for size in (batch, 1)
            )
            times |= in_turns("predict", batches, repeats)
            times |= in_turns("latency", singles, LATENCY_REPEATS, LATENCY_CALLS)
            flops |= {f"{name}_predict": count_flops(call) for name, call in batches.items()}
        found: Result = {"parts": {}, "memory_bytes": {}}
        if parts:
            log.info("parts of a step of the DKM")
            dkm = subjects["dkm"]
            found["parts"] = parts_of_step(dkm, dkm.batch(batch), repeats)
        if memory:
            log.info("memory: a new process for each model")
            peaks = {name: memory_of_training(name, widths, batch, threads) for name in SUBJECTS}
            found["memory_bytes"] = peaks
        return {
            "width": width,
            "widths": list(widths),
            "batch": batch,
            "repeats": repeats,
            **times,
            "gemm_gflops": gemm,
            "gemm_share": shares,
            "flops": flops,
            **found,
            **environment(SEED, torch.device("cpu"), torch.float32),
        }


def in_turns(name: str, functions: Functions, repeats: int, calls: int = 1) -> Result:
    """Median seconds of a call of each function, and the ratio of ``dkm`` to ``network``.

    Args:
        name: that the entries begin with.
        functions: what to call, by name.
        repeats: turns that count, after a few that do not.
        calls: calls per turn, for functions so short that one call says little.
    """
    times: dict[str, list[float]] = {each: [] for each in functions}
    for turn in range(WARM_UPS + repeats):
        for each, function in functions.items():
            started = time.perf_counter()
            for _ in range(calls):
                function()
            if turn >= WARM_UPS:
                times[each].append((time.perf_counter() - started) / calls)
    ratios = np.array(times["dkm"]) / np.array(times["network"])
    return {
        f"{name}_ratio": float(np.median(ratios)),
        f"{name}_ratio_spread": {
            level: float(np.quantile(ratios, share)) for level, share in LEVELS.items()
        },
        f"{name}_seconds": {each: float(np.median(own)) for each, own in times.items()},
    }


def gemm_gflops(repeats: int = 4) -> float:
    """The best throughput of a product of two square matrices in float32, in GFLOP/s."""
    A = torch.ones(GEMM_SIZE, GEMM_SIZE)
    product, best = torch.empty_like(A), float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        torch.mm(A, A, out=product)
        best = min(best, time.perf_counter() - started)
    return 2 * GEMM_SIZE**3 / best / 1e9
