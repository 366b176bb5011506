"""What a run will cost, estimated before it starts."""

from __future__ import annotations

import math

from gramian.nn.contract import Trainable
from gramian.nn.model import DKM
from gramian.train.config import TrainConfig
from gramian.train.cost.step_memory import step_bytes
from gramian.train.task import Task

FILES_SECONDS, FILES_RATE = 0.03, 3e8
"""Of an epoch's files on a usual disk: seconds for the smallest, and bytes per second."""


def expectation(
    task: Task,
    config: TrainConfig,
    model: Trainable,
    share: int,
    steps: int,
    step_seconds: float,
    recorded: bool,
) -> str:
    """One line: size, memory and time expected.

    Args:
        task, config, model: of the run.
        share: of a batch, that is computed at once.
        steps: in all.
        step_seconds: for one.
        recorded: whether each epoch writes a checkpoint.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    looked_at = len(task.validation or task.test or ())
    # Without gradients a data point takes a third of the time.
    evaluation = step_seconds / 3 * looked_at / min(config.batch_size, len(task.train))
    files = FILES_SECONDS + 12 * parameters / FILES_RATE if recorded else 0.0
    epochs = config.max_epochs
    seconds = steps * step_seconds + epochs / config.evaluate_every * evaluation + epochs * files
    return (
        f"{config.data}: {len(task.train):,} training points, {parameters:,} parameters, "
        f"{_memory(model, share)}"
        f"{'at most ' if config.patience else ''}{epochs} epochs = {steps:,} steps of "
        f"{step_seconds:.2g} s: with evaluations{' and checkpoints' * recorded} about "
        f"{duration(seconds)}"
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
