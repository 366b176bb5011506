"""All measurements of one run, as one dictionary."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.flops import count_flops
from benchmarks.measure import Comparison, compare, gemm_gflops
from benchmarks.parts import parts_of_step
from benchmarks.process_memory import memory_of_training
from benchmarks.subjects import SEED, SUBJECTS, BenchConfig, Subject
from gramian.train.record.run_folder import environment
from gramian.train.runtime.memory import keep_freed_memory
from gramian.train.runtime.threads import num_threads

LATENCY_REPEATS, LATENCY_CALLS = 30, 5

log = logging.getLogger("gramian")

Result = dict[str, Any]
Functions = dict[str, Callable[[], object]]


def run_bench(config: BenchConfig, *, memory: bool = True, parts: bool = True) -> Result:
    """Measure the two models; without ``memory`` or ``parts``, these entries are empty."""
    keep_freed_memory()
    with num_threads(config.threads):
        subjects = {name: build(config.widths) for name, build in SUBJECTS.items()}
        gemm = gemm_gflops()
        trained = measure_training(subjects, config)
        gemm = max(gemm, gemm_gflops())
        predicted = measure_prediction(subjects, config)
        shares = {
            name: trained["flops"][f"{name}_train"] / seconds / gemm / 1e9
            for name, seconds in trained["train_seconds"].items()
        }
        facts = environment(SEED, torch.device("cpu"), torch.float32)
        flops = trained.pop("flops") | predicted.pop("flops")
        return {
            "width": config.width,
            "widths": list(config.widths),
            "batch": config.batch,
            "repeats": config.repeats,
            **trained,
            **predicted,
            "gemm_gflops": gemm,
            "gemm_share": shares,
            "flops": flops,
            "parts": measure_parts(subjects, config) if parts else {},
            "memory_bytes": measure_memory(config) if memory else {},
            **facts,
        }


def measure_training(subjects: dict[str, Subject], config: BenchConfig) -> Result:
    """Training steps that take turns."""
    log.info("training steps: %d of each model", config.repeats)
    steps: Functions = {
        name: partial(subject.step, subject.batch(config.batch))
        for name, subject in subjects.items()
    }
    return {
        **_times("train", compare(steps, config.repeats)),
        "flops": {f"{name}_train": count_flops(step) for name, step in steps.items()},
    }


@torch.inference_mode()
def measure_prediction(subjects: dict[str, Subject], config: BenchConfig) -> Result:
    """Predictions of the frozen models for a batch, and for one image."""
    log.info("predictions: %d of each model", config.repeats)
    models = {name: subject.freeze() for name, subject in subjects.items()}

    def forward(size: int) -> Functions:
        return {n: partial(m, subjects[n].batch(size).images) for n, m in models.items()}

    batches, singles = forward(config.batch), forward(1)
    return {
        **_times("predict", compare(batches, config.repeats)),
        **_times("latency", compare(singles, LATENCY_REPEATS, LATENCY_CALLS)),
        "flops": {f"{name}_predict": count_flops(call) for name, call in batches.items()},
    }


def measure_parts(subjects: dict[str, Subject], config: BenchConfig) -> Result:
    """Parts of the DKM's training step."""
    log.info("parts of a step of the DKM")
    subject = subjects["dkm"]
    return dict(parts_of_step(subject, subject.batch(config.batch), config.repeats))


def measure_memory(config: BenchConfig) -> dict[str, int]:
    """Peak memory of a process that trains one model."""
    log.info("memory: a new process for each model")
    return {name: memory_of_training(name, config) for name in SUBJECTS}


def _times(name: str, comparison: Comparison) -> Result:
    return {
        f"{name}_ratio": comparison.ratio(),
        f"{name}_ratio_spread": comparison.spread(),
        f"{name}_seconds": comparison.seconds(),
    }
