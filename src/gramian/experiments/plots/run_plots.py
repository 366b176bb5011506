"""The plots of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gramian.experiments.plots import training_plots as plots
from gramian.experiments.plots.training_plots import Figure
from gramian.nn.model import DKM
from gramian.nn.steps.inputs import PatchInput
from gramian.train.data import Dataset
from gramian.train.predict.evaluate import evaluate
from gramian.train.predict.metrics import ClassificationMetrics, RegressionMetrics
from gramian.train.predict.predictor import Predictor
from gramian.train.record.run_folder import Row


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a model says about a data set.

    Args:
        metrics: of all data points.
        predictions: class probabilities [N, C]; or means and variances of the targets, [2, N, T].
            None: to be computed where a plot needs them.
    """

    metrics: ClassificationMetrics | RegressionMetrics
    predictions: Tensor | None = None


def predictions_of(predictor: Predictor, data: Dataset) -> Tensor:
    """Class probabilities, or means and variances."""
    if predictor.class_names:
        return predictor.probabilities(data.x)
    return torch.stack(predictor.mean_and_variance(data.x))


def save_run_plots(
    predictor: Predictor,
    test: Dataset | None,
    rows: list[Row],
    folder: Path,
    evaluation: Evaluation | None = None,
) -> list[Path]:
    """Draw and save all plots that the run has data for; returns their paths.

    ``evaluation`` is that of the test set, if it is known already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in run_plots(predictor, test, rows, evaluation):
        plots.save(figure, folder / f"{name}.png")
        paths.append(folder / f"{name}.png")
    return paths


def run_plots(
    predictor: Predictor,
    test: Dataset | None,
    rows: list[Row],
    evaluation: Evaluation | None = None,
) -> Iterator[tuple[str, Figure]]:
    """Name and figure of each plot."""
    model = predictor.model
    if rows:
        yield "learning_curves", plots.learning_curves(rows)
    if rows and isinstance(model, DKM):
        yield "kl_terms", plots.kl_terms(rows)
        yield "condition_numbers", plots.condition_numbers(rows)
    if isinstance(model, DKM) and isinstance(model.inputs, PatchInput):
        patches = model.inputs.inducing_patches.detach().cpu().numpy()
        yield "inducing_patches", plots.inducing_patches(patches)
    if test is None:
        return
    known = evaluation or Evaluation(evaluate(predictor, test))
    metrics, names = known.metrics, predictor.class_names
    if isinstance(metrics, ClassificationMetrics):
        confidence, accuracy, count = (values.cpu().numpy() for values in metrics.reliability())
        yield "reliability", plots.reliability_diagram(confidence, accuracy, count)
        yield "confusion", plots.confusion_matrix(metrics.confusion.cpu().numpy(), names)
        if not test.images:
            return
    predictions = known.predictions
    if predictions is None:
        predictions = predictions_of(predictor, test)
    values, y = predictions.cpu().numpy(), test.y.numpy()
    if isinstance(metrics, ClassificationMetrics):
        yield "certain_images", plots.certain_images(test.x.numpy(), y, values, names)
    else:
        mean, var = values
        yield "predictions", plots.predicted_against_true(y, mean, var**0.5)
