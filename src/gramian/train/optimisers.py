"""Optimisers by name."""

from __future__ import annotations

import torch
from torch import nn

from gramian.train.config import TrainConfig


def build_optimiser(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimiser that the settings name, all parameters in one group, one kernel a step."""
    parameters, c = list(model.parameters()), config
    match c.optimiser:
        case "adam":
            return torch.optim.Adam(parameters, c.lr, c.betas, fused=True)
        case "adamw":
            return torch.optim.AdamW(
                parameters, c.lr, c.betas, weight_decay=c.weight_decay, fused=True
            )
        case "sgd":
            return torch.optim.SGD(
                parameters, c.lr, c.momentum, weight_decay=c.weight_decay, fused=True
            )
