"""What a run will cost, said before it starts."""

from __future__ import annotations

import math

import torch

from gramian.nn.conv import KernelConv
from gramian.nn.gram_layer import GramLayer
from gramian.nn.model import DKM
from gramian.train.config import TrainConfig
from gramian.train.task import Task

KEPT = 8  # blocks of the size of G_ti that autograd keeps for a layer (measured, eager mode)


def expectation(task: Task, config: TrainConfig, model: DKM, step_seconds: float) -> str:
    """One line: size, memory and time expected."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    batch = min(config.batch_size, len(task.train))
    steps = math.ceil(len(task.train) / batch) * config.max_epochs
    memory = 4 * parameters * _bytes(model.dtype) + activation_bytes(model, batch)
    return (
        f"{config.data}: {len(task.train):,} training points, {parameters:,} parameters, "
        f"about {memory / 1e6:,.0f} MB for a step, {config.max_epochs} epochs = {steps:,} steps "
        f"of {step_seconds:.2f} s: about {duration(steps * step_seconds)}"
    )


def activation_bytes(model: DKM, batch: int) -> int:
    """Estimate of what autograd keeps of a batch: KEPT blocks [B, H, W, P] for each Gram layer."""
    space = list(model.data_shape[1:])
    entries, largest = 0, 0
    for layer in model.layers.values():
        before = entries
        for path, module in layer.named_modules():
            if isinstance(module, KernelConv) and "shortcut" not in path:
                space = [math.ceil(side / module.stride) for side in space]
            if isinstance(module, GramLayer):
                entries += math.prod(space) * module.num_inducing
        largest = max(largest, entries - before)
    if model.recompute_activations:  # blocks between the layers, and one layer in full
        entries = entries // KEPT + largest
    return KEPT * entries * batch * _bytes(model.dtype)


def duration(seconds: float) -> str:
    """Seconds, as a person says them."""
    if math.isnan(seconds):
        return "an unknown time"
    for unit, length in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def _bytes(dtype: torch.dtype) -> int:
    return torch.finfo(dtype).bits // 8
