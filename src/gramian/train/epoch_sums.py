"""Sums over the steps of an epoch, and the figures made of them."""

from __future__ import annotations

import torch

from gramian.train.engine import Engine
from gramian.train.run_folder import Row
from gramian.train.step import StepResult

Sums = dict[str, int | float]


def add_step(sums: Sums, result: StepResult, seconds: float) -> Sums:
    """The sums with one more step."""
    terms = result.terms
    new = {
        "objective": terms.total.item(),
        "expected_log_likelihood": terms.expected_log_lik.item(),
        "total_kl": terms.kl.item(),
        **{f"kl/{path}": value for path, value in result.kl.items()},
        "correct": result.correct,
        "count": result.count,
        "clamped": result.clamped,
        "seconds": seconds,
        "steps": 1,
    }
    return {name: sums.get(name, 0) + value for name, value in new.items()}


def epoch_row(sums: Sums, engine: Engine, is_classifier: bool) -> Row:
    """Means over the steps; accuracy over all data points of all processes; totals of the rest."""
    means = dict(sums)
    steps, seconds, clamped = means.pop("steps"), means.pop("seconds"), means.pop("clamped")
    counted = torch.tensor([means.pop("correct"), means.pop("count")], dtype=torch.float64)
    correct, count = engine.total(counted.to(engine.device)).tolist()
    for name in ("objective", "expected_log_likelihood"):  # each process knows its share only
        share = torch.tensor(means[name], dtype=torch.float64, device=engine.device)
        means[name] = engine.total(share).item() / engine.world_size
    row = {name: value / steps for name, value in means.items()}
    if is_classifier:
        row["train_accuracy"] = correct / count
    return row | {"seconds": seconds, "clamped": clamped}
