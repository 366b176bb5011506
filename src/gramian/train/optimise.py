"""How a run learns: its optimiser, its learning rate at each step, and when it stops early."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gramian.train.config import TrainConfig
from gramian.train.muon import Muon
from gramian.train.record.run_folder import Row

Schedule = Literal["steps", "cosine", "one_cycle", "constant"]
WARM_UP = 0.3  # share of one_cycle's steps

OPTIMISERS: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "muon": Muon,
}
VALIDATION = "validation_log_likelihood"
Best = dict[str, Any]


def build_optimiser(
    model: nn.Module, config: TrainConfig, sharded: bool = False
) -> torch.optim.Optimizer:
    """The optimiser that the settings name, with a group for each kind of parameter.

    ``sharded``: this process keeps the state of its share of the parameters, and steps them for
    all; the steps are the same.
    """
    groups, c = parameter_groups(model, config), config
    settings: dict[str, Any] = {"lr": c.lr}
    if c.optimiser != "sgd":
        settings["betas"] = c.betas
    if c.optimiser in ("sgd", "muon"):
        settings["momentum"] = c.momentum
    if c.optimiser != "adam":
        settings["weight_decay"] = c.weight_decay
    if c.optimiser != "muon":
        settings["fused"] = True
    if sharded:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(groups, OPTIMISERS[c.optimiser], **settings)
    optimiser: torch.optim.Optimizer = OPTIMISERS[c.optimiser](groups, **settings)
    return optimiser


def parameter_groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    """Parameters by their kind, each group with the ``factor`` of its learning rate."""
    kinds: dict[str, list[nn.Parameter]] = {}
    for path, parameter in model.named_parameters():
        kinds.setdefault(kind_of(path, parameter), []).append(parameter)
    return [
        {
            "params": parameters,
            "kind": kind,
            "factor": getattr(config.lr_factors, kind),
            "matrices": config.optimiser == "muon" and kind == "mixing",
        }
        for kind, parameters in kinds.items()
    ]


def kind_of(path: str, parameter: Tensor) -> str:
    """Which field of ``LRFactors`` a parameter follows, by its path in the model.

    Mixing is what no other kind claims and has two dimensions or more: a network's filters too.
    """
    parts = path.split(".")
    if parts[0] == "inputs":
        return "inputs"
    if "output" in parts or parts[:2] == ["network", "linear"]:
        return "output"
    if "inducing_gram" in parts:
        return "gram"
    return "mixing" if parameter.ndim >= 2 else "scales"


def set_learning_rate_(optimiser: torch.optim.Optimizer, lr: float) -> None:
    """``lr`` times its factor for every group."""
    for group in optimiser.param_groups:
        group["lr"] = lr * group["factor"]


def lr_factor(
    schedule: Schedule, step: int, steps_per_epoch: int, epochs: int, milestones: Sequence[float]
) -> float:
    """What multiplies the learning rate at ``step`` = 0, 1, ….

    ``steps`` changes between epochs only: × 0.1 from epoch ⌊m · epochs⌋ on, for each milestone m.
    """
    progress = step / (steps_per_epoch * epochs)
    match schedule:
        case "steps":
            epoch = step // steps_per_epoch
            return 0.1 ** sum(epoch >= math.floor(m * epochs + 1e-9) for m in milestones)
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        case "one_cycle":
            if progress < WARM_UP:
                return 0.04 + 0.96 * progress / WARM_UP
            return 0.5 * (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP)))
        case "constant":
            return 1.0


def best_of(best: Best | None, row: Row, model: nn.Module) -> Best | None:
    """The better of the best so far and the present model, if that has a log-likelihood."""
    found = row.get(VALIDATION, math.nan)
    if math.isnan(found) or (best is not None and found <= best[VALIDATION]):
        return best
    return {
        "model": copy.deepcopy(model.state_dict()),
        "epoch": row["epoch"],
        VALIDATION: found,
    }


def is_over(best: Best | None, rows: list[Row], patience: int | None) -> bool:
    """Whether so many evaluations have passed without a better one."""
    if patience is None or best is None:
        return False
    return sum(VALIDATION in row and row["epoch"] > best["epoch"] for row in rows) >= patience
