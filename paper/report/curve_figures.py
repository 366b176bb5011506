"""Learning curves: ours over the published ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from gramian.experiments.plots.style import BLUE, ORANGE, STYLE, Figure, epoch_axis, set_title
from gramian.experiments.plots.training_plots import learning_curves
from paper.published import Metric
from paper.report.grids import published_name, scale_name
from paper.report.results import PlainRun, RowResults, Run, TableResults

KEYS = {  # of the rows of metrics.jsonl, the first that is there
    ("test", "accuracy"): ("test_accuracy",),
    ("train", "accuracy"): ("train_accuracy",),
    ("test", "log_likelihood"): ("test_log_likelihood",),
    ("train", "log_likelihood"): ("train_log_likelihood", "expected_log_likelihood"),
}
CLIPPED = {("test", "log_likelihood"): ("test_log_likelihood_clipped", "test_log_likelihood")}
PANELS: dict[Metric, str] = {
    "accuracy": "Accuracy (%)",
    "log_likelihood": "Log-likelihood (nats per example)",
}
SCALES: dict[Metric, float] = {"accuracy": 100.0, "log_likelihood": 1.0}
FADED = {BLUE: "#8FC3E3", ORANGE: "#F3D08A"}  # of training curves


@dataclass(frozen=True)
class Line:
    """One curve, with a cross at its end if it failed."""

    split: str
    epochs: tuple[int, ...]
    values: tuple[float, ...]
    failed: bool


def table_curves(table: TableResults) -> Iterator[tuple[str, str, Figure]]:
    """A name, a description and a figure for each row that has curves of ours."""
    for row in table.rows:
        figure = curve_figure(table, row)
        if figure is not None:
            text = f"Learning curves of {row.label}, {scale_name(table)}: accuracy and "
            text += "log-likelihood of every seed over the epochs, on training and test data"
            text += ", ours and published" if row.published else ""
            yield f"{table.key}-{row.key}", text, figure


def plain_curves(runs: Iterable[PlainRun]) -> Iterator[tuple[str, str, Figure]]:
    """The same for plain runs: all that was recorded of each over its epochs."""
    for plain in runs:
        if plain.run.epochs:
            figure = learning_curves(plain.run.epochs)
            set_title(figure, plain.key)
            yield plain.key, f"Learning curves of {plain.key}", figure


@matplotlib.rc_context(STYLE)
def curve_figure(table: TableResults, row: RowResults) -> Figure | None:
    """Accuracy and log-likelihood of every seed over the epochs; None if we have no epoch yet.

    The epoch axis is logarithmic if our runs are much shorter than the published ones.
    """
    if not any(run.epochs for run in row.runs):
        return None
    figure = Figure(figsize=(6.4, 3.3))
    theirs = published_name(table)
    for axes, (metric, unit) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
        groups = {
            theirs: (ORANGE, list(published_lines(row, metric))),
            "ours": (BLUE, list(our_lines(row, metric))),
        }
        for name, (colour, lines) in groups.items():
            _draw(axes, lines, colour, name)
        lengths = {
            name: max((line.epochs[-1] for line in lines), default=1)
            for name, (_, lines) in groups.items()
        }
        epoch_axis(axes, is_log=lengths["ours"] < lengths[theirs] / 2)
        axes.set_title(unit, fontsize=9)
        _leave_out_starts(axes, [line for _, lines in groups.values() for line in lines])
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    set_title(figure, f"{row.label} — {scale_name(table)}")
    return figure


def our_lines(row: RowResults, metric: Metric) -> Iterator[Line]:
    """Curves of our runs, training first; a failed run without test metrics is marked there."""
    curves = {
        split: [list(_points(run, split, metric)) for run in row.runs]
        for split in ("train", "test")
    }
    for split, of_runs in curves.items():
        for run, points, tested in zip(row.runs, of_runs, curves["test"], strict=True):
            if points:
                epochs, values = zip(*points, strict=True)
                is_marked = split == "test" or not tested
                yield Line(split, epochs, values, run.failure is not None and is_marked)


def published_lines(row: RowResults, metric: Metric) -> Iterator[Line]:
    """Curves of the published runs, training first."""
    if row.theirs is None:
        return
    scale = SCALES[metric]
    for split in ("train", "test"):
        for run in row.theirs.runs:
            values = tuple(scale * value for value in getattr(run.curve, f"{split}_{metric}"))
            failed = split == "test" and run.accuracy is None
            yield Line(split, run.curve.epochs, values, failed)


def _points(run: Run, split: str, metric: Metric) -> Iterator[tuple[int, float]]:
    keys = (KEYS | CLIPPED if run.clipped else KEYS)[split, metric]
    for row in run.epochs:
        found = [row[key] for key in keys if isinstance(row.get(key), int | float)]
        if found and math.isfinite(found[0]):
            yield row["epoch"], float(SCALES[metric] * found[0])


def _draw(axes: Axes, lines: list[Line], colour: str, name: str) -> None:
    labelled: set[str] = set()
    for line in lines:
        is_test = line.split == "test"
        split = "test" if is_test else "training"
        axes.plot(
            line.epochs,
            line.values,
            color=colour if is_test else FADED[colour],
            linewidth=1.3 if is_test else 0.9,
            linestyle="-" if is_test else (0, (3, 1)),
            marker="." if len(line.epochs) == 1 else "",
            label=f"{name}, {split}" if split not in labelled else None,
        )
        labelled.add(split)
        if line.failed:
            label = f"{name}, failed" if "failed" not in labelled else None
            end = line.epochs[-1:], line.values[-1:]
            axes.scatter(*end, s=45, c=colour, marker="x", label=label, linewidths=2, zorder=5)
            labelled.add("failed")


def _leave_out_starts(axes: Axes, lines: list[Line]) -> None:
    """Begin the axis where 95 % of each curve are above, so that first epochs do not set it."""
    if lines:
        low = min(float(np.quantile(line.values, 0.05)) for line in lines)
        high = max(max(line.values) for line in lines)
        margin = 0.05 * (high - low)
        axes.set_ylim(low - margin, high + margin if high > low else None)
