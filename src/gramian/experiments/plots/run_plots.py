"""The plots of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gramian.experiments.plots import training_plots as plots
from gramian.experiments.plots.training_plots import Figure
from gramian.nn.likelihoods.metric_sums import ClassificationMetrics, Metrics
from gramian.nn.model import DKM
from gramian.nn.steps.inputs import PatchInput
from gramian.train.data import Dataset
from gramian.train.predict.evaluate import evaluate
from gramian.train.predict.predictor import Predictor
from gramian.train.record.run_folder import Row


def save_run_plots(
    predictor: Predictor,
    test: Dataset | None,
    rows: list[Row],
    folder: Path,
    metrics: Metrics | None = None,
) -> list[Path]:
    """Draw and save all plots that the run has data for; returns their paths.

    ``metrics`` are those of ``predictor`` on ``test``, if they are there already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in run_plots(predictor, test, rows, metrics):
        plots.save(figure, folder / f"{name}.png")
        paths.append(folder / f"{name}.png")
    return paths


def run_plots(
    predictor: Predictor, test: Dataset | None, rows: list[Row], metrics: Metrics | None = None
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
    names, y = predictor.class_names, test.y.numpy()
    metrics = metrics or evaluate(predictor, test)
    if isinstance(metrics, ClassificationMetrics):
        confidence, accuracy, count = (values.cpu().numpy() for values in metrics.reliability())
        yield "reliability", plots.reliability_diagram(confidence, accuracy, count)
        yield "confusion", plots.confusion_matrix(metrics.confusion.cpu().numpy(), names)
        if test.images:
            probabilities = predictor.probabilities(test.x).cpu().numpy()
            yield "certain_images", plots.certain_images(test.x.numpy(), y, probabilities, names)
        return
    mean, var = (values.cpu().numpy() for values in predictor.mean_and_variance(test.x))
    yield "predictions", plots.predicted_against_true(y, mean, var**0.5)
