"""The objective of one training step: a function of the model, the step's number and the seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gramian.gram.errors import NonFiniteError
from gramian.nn.contract import ByPath, Trainable
from gramian.nn.layers import grams_of
from gramian.nn.likelihoods import received
from gramian.nn.model import DKM
from gramian.train.objective import Terms, objective
from gramian.train.record.run_folder import Row
from gramian.train.runtime.engine import Engine, Forward
from gramian.train.runtime.seeds import generator
from gramian.train.task import Task

Sums = dict[str, int | float]
"""Over the steps of the epoch under way."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is. ``attempt`` counts rollbacks: after one, the same step has other noise."""

    seed: int
    step: int
    attempt: int = 0

    def draw(self, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
        """The generator of one purpose at this place."""
        return generator(self.seed, purpose, self.step, self.attempt, device=device)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The objective of a step and what is logged about it."""

    terms: Terms
    kl: ByPath
    counts: dict[str, Tensor]  # correct, count, clamped

    def numbers(self) -> Sums:
        """All that is logged, in one look at the device."""
        values = {
            "objective": self.terms.total,
            "expected_log_likelihood": self.terms.expected_log_lik,
            "total_kl": self.terms.kl,
            **{f"kl/{path}": value for path, value in self.kl.items()},
            **self.counts,
        }
        dtype = self.terms.total.dtype
        stacked = torch.stack([value.detach().to(dtype) for value in values.values()])
        return dict(zip(values, stacked.tolist(), strict=True))


def num_steps(num_data: int, batch_size: int) -> int:
    """Steps of an epoch. One data point that is left over, which has no variance, makes no step."""
    whole, rest = divmod(num_data, batch_size)
    return whole + (rest > 1)


def batch_indices(num_data: int, batch_size: int, place: Place) -> Tensor:
    """The data points of a step: epoch by epoch, each in an order of its own.

    The last step has those that are left, and one more than others if that would be alone.
    """
    steps = num_steps(num_data, batch_size)
    epoch, number = divmod(place.step, steps)
    order = torch.randperm(num_data, generator=generator(place.seed, "shuffle", epoch))
    return order[number * batch_size : None if number + 1 == steps else (number + 1) * batch_size]


def step_objective(
    forward: Forward,
    model: Trainable,
    task: Task,
    indices: Tensor,
    place: Place,
    engine: Engine,
    part: int = 0,
    parts: int = 1,
) -> StepResult:
    """Augment a batch, draw all noise, and evaluate the objective, or one of ``parts`` that add up.

    With several processes, or parts, each draws the same noise for the whole batch and takes its
    share, so that the result is that of one process.
    """
    raw = task.inputs(task.train.x[indices], place.draw("augmentation"), engine.dtype)
    if not raw.isfinite().all():
        raise NonFiniteError("the augmented batch")
    places = torch.arange(len(indices))[part::parts]
    share, weight = engine.share(places)
    y = received(task.train.y[indices[share]], engine.device)
    weights = task.train.weights_at(indices[share], engine.dtype, engine.device)
    noise = model.draw_noise(place.draw("skr", engine.device))
    draw = place.draw("likelihood", engine.device)
    samples = model.draw_samples(len(indices), draw)
    if len(share) < samples.shape[1]:
        samples = samples[:, share.to(engine.device)]
    result = forward(raw[share].to(engine.device), noise)
    num_data, likelihood = task.train.total_weight, model.likelihood
    terms = objective(result, likelihood, y, samples, num_data, weights)
    if engine.world_size > 1 or parts > 1:  # shares may differ; processes average their gradients
        expected = terms.expected_log_lik * (weight * len(places) / len(indices))
        terms = Terms(expected, terms.kl, expected - terms.kl / (num_data * parts))
    hits = likelihood.hits(result.marginals, y)
    zero = terms.total.new_zeros(())
    w = torch.ones_like(terms.expected_log_lik).expand(len(y)) if weights is None else weights
    counts = {
        "correct": zero if hits is None else (w * hits).sum(),
        "count": w.sum(),
        "clamped": sum((result.seen[path] for path in grams_of_layers(model)), zero),
    }
    if len(share) == len(places) and not engine.is_first:  # all had the same points
        counts = dict.fromkeys(counts, zero)
    return StepResult(terms, result.kl, counts)


def added_up(parts: Sequence[StepResult]) -> StepResult:
    """The parts of a step as one."""
    if len(parts) == 1:
        return parts[0]
    expected = torch.stack([part.terms.expected_log_lik.detach() for part in parts]).sum()
    total = torch.stack([part.terms.total.detach() for part in parts]).sum()
    counts = {
        name: torch.stack([part.counts[name] for part in parts]).sum() for name in parts[0].counts
    }
    return StepResult(Terms(expected, parts[0].terms.kl, total), parts[0].kl, counts)


def grams_of_layers(model: Trainable) -> Iterable[str]:
    """The paths of a model's Gram layers, if it has any."""
    return grams_of(model.layers) if isinstance(model, DKM) else ()


def check_finite(model: Trainable, terms: Terms) -> None:
    """Raise NonFiniteError unless the objective and all gradients are finite: one look at all."""
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    norms = torch._foreach_norm(list(gradients.values()))
    finite = torch.stack([terms.total.detach(), *norms]).isfinite()
    if not finite.all():
        names = ("the objective", *(f"the gradient of {name}" for name in gradients))
        raise NonFiniteError(names[finite.tolist().index(False)])


def add_step(sums: Sums, numbers: Sums, seconds: float, engine: Engine) -> Sums:
    """The sums with one more step, over all processes and the same in each."""
    totals = {name: engine.world_size * numbers[name] for name in ("correct", "count", "clamped")}
    new = {**numbers, **totals, "seconds": seconds, "steps": 1}
    means = engine.mean(list(new.values()))
    return {name: sums.get(name, 0) + value for name, value in zip(new, means, strict=True)}


def epoch_row(sums: Sums, is_classifier: bool) -> Row:
    """Means over the steps; accuracy over all data points; totals of the rest."""
    means = dict(sums)
    steps, seconds, clamped = means.pop("steps"), means.pop("seconds"), means.pop("clamped")
    correct, count = means.pop("correct"), means.pop("count")
    row = {name: value / steps for name, value in means.items()}
    if is_classifier:
        row["train_accuracy"] = correct / count
    return row | {"seconds": seconds, "clamped": clamped}
