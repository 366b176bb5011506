"""Metrics of a model on a data set, in evaluation mode and without gradients."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

import torch
from torch import Tensor

from gramian.gram.blocks import Marginals
from gramian.gram.errors import within
from gramian.gram.linalg import condition_number
from gramian.nn.contract import Trainable
from gramian.nn.layers import grams_of
from gramian.nn.likelihoods import received
from gramian.nn.likelihoods.metric_sums import Metrics
from gramian.nn.model import DKM
from gramian.train.data import Dataset
from gramian.train.predict.predictor import Predictor
from gramian.train.runtime.engine import Engine


@torch.no_grad()
def evaluate(predictor: Predictor, data: Dataset, batch_size: int = 256) -> Metrics:
    """Accumulated metrics; ``as_numbers`` gives them as numbers. Weight 2 counts as two points."""
    marginals, targets = predictor.marginals(data.x, batch_size), data.y.split(batch_size)
    weights = None if data.weights is None else data.weights.split(batch_size)
    return metrics_of(predictor, zip(marginals, targets, strict=True), weights)


@torch.no_grad()
def metrics_of(
    predictor: Predictor,
    batches: Iterable[tuple[Marginals, Tensor]],
    weights: Iterable[Tensor] | None = None,
) -> Metrics:
    """The same of marginals that are there already, each batch with its targets."""
    likelihood, samples, device = predictor.model.likelihood, predictor.samples(), predictor.device
    metrics = likelihood.metrics()
    each: Iterable[Tensor | None] = repeat(None) if weights is None else weights
    for (q, y), w in zip(batches, each):  # noqa: B905 (one may be endless)
        w = None if w is None else received(w, device)
        likelihood.add_to_(metrics, q, received(y, device), samples, w)
    return metrics


def evaluate_together(predictor: Predictor, data: Dataset, engine: Engine) -> Metrics:
    """The same by all processes, each with a share of the data; a numerical error is one in all."""
    if len(data) < engine.world_size or engine.world_size == 1:
        return evaluate(predictor, data)
    share, _ = engine.share(torch.arange(len(data)))
    metrics = engine.together(lambda: evaluate(predictor, data.subset(share)))
    for name, value in metrics.sums.items():
        metrics.sums[name] = engine.sum_(value.to(engine.device))
    return metrics


def as_numbers(metrics: Metrics) -> dict[str, float]:
    """The metrics as plain numbers."""
    return {name: float(value) for name, value in metrics.compute().items()}


def condition_numbers(model: Trainable) -> dict[str, float]:
    """Condition number of each learned Gram matrix, by layer."""
    if not isinstance(model, DKM):
        return {}
    found = {}
    for path, gram in grams_of(model.layers).items():
        if gram.inducing_gram is not None:
            with within(path):
                found[path] = condition_number(gram.inducing_gram.matrix)
    return found
