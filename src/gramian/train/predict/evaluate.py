"""Figures of a model on a data set, in evaluation mode and without gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from gramian.gram.linalg import condition_number
from gramian.nn.contract import Trainable
from gramian.nn.likelihoods import Categorical
from gramian.nn.model import DKM
from gramian.nn.steps.gram_layer import GramLayer
from gramian.train.data import Dataset
from gramian.train.predict.metrics import ClassificationMetrics, RegressionMetrics
from gramian.train.predict.predictor import Predictor


def evaluate(
    predictor: Predictor, data: Dataset, batch_size: int = 256
) -> ClassificationMetrics | RegressionMetrics:
    """Accumulated figures; ``figures`` gives them as numbers.

    With several processes each that calls this evaluates all data by itself.
    """
    likelihood = predictor.model.likelihood
    device = predictor.model.device
    samples = predictor.samples()
    batches = zip(
        predictor.marginals(data.x, batch_size), data.y.to(device).split(batch_size), strict=True
    )
    with torch.no_grad():
        if isinstance(likelihood, Categorical):
            metrics = ClassificationMetrics(likelihood.num_classes, sync_on_compute=False).to(
                device
            )
            for q, y in batches:
                metrics.update(
                    likelihood.predict(q, samples),
                    y,
                    likelihood.log_marginal(q, y, samples),
                    likelihood.log_marginal(q, y, samples, clip=True),
                )
            return metrics
        regression = RegressionMetrics(sync_on_compute=False).to(device)
        shift, scale = (samples.new_tensor(values) for values in predictor.target_scale)
        for q, y in batches:
            mean, var = likelihood.predict(q, samples)
            regression.update(mean * scale + shift, var * scale.square(), y.to(mean.dtype))
        return regression


def figures(metrics: ClassificationMetrics | RegressionMetrics) -> dict[str, float]:
    """The figures as plain numbers."""
    computed: dict[str, Tensor] = metrics.compute()
    return {name: float(value) for name, value in computed.items()}


def condition_numbers(model: Trainable) -> dict[str, float]:
    """Condition number of each learned Gram matrix, by layer."""
    if not isinstance(model, DKM):
        return {}
    return {
        path: condition_number(module.inducing_gram.matrix)
        for path, module in model.layers.named_modules()
        if isinstance(module, GramLayer) and module.inducing_gram is not None
    }
