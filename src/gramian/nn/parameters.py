"""Parameters whose start value is a number that is known to more digits than float32 has."""

from __future__ import annotations

import torch
from torch import nn


def start_at(value: float, *shape: int) -> nn.Parameter:
    """A parameter of ``shape`` that starts at ``value`` everywhere."""
    parameter = nn.Parameter(torch.full(shape, value))
    parameter.start = value  # type: ignore[attr-defined]
    return parameter


@torch.no_grad()
def start_in_(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert a new module to ``dtype``, without rounding its start values to another first."""
    module.to(dtype)
    for parameter in module.parameters():
        if hasattr(parameter, "start"):
            parameter.fill_(parameter.start)
