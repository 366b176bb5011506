"""What a run will cost, estimated before it starts."""

from __future__ import annotations

import math

from gramian.nn.contract import Trainable
from gramian.nn.model import DKM
from gramian.train.config import TrainConfig
from gramian.train.cost.step_memory import step_bytes
from gramian.train.task import Task


def expectation(
    task: Task, config: TrainConfig, model: Trainable, share: int, steps: int, step_seconds: float
) -> str:
    """One line: size, memory and time expected; ``share``: of a batch, that is computed at once."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return (
        f"{config.data}: {len(task.train):,} training points, {parameters:,} parameters, "
        f"{_memory(model, share)}"
        f"{config.max_epochs} epochs = {steps:,} steps of {step_seconds:.2f} s: "
        f"about {duration(steps * step_seconds)}"
    )


def duration(seconds: float) -> str:
    """Seconds, as a person says them."""
    if math.isnan(seconds):
        return "an unknown time"
    for unit, length in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def _memory(model: Trainable, share: int) -> str:
    if not isinstance(model, DKM):
        return ""
    count = len(model.recomputed)
    recomputed = f" with {count} of {len(model.layers)} layers recomputed" if count else ""
    megabytes = step_bytes(model, share, model.recomputed) / 1e6
    return f"about {megabytes:,.0f} MB for a step{recomputed}, "
