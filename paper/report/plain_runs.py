"""Runs of ``gramian train`` as a table: test metrics, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Sequence

from gramian.experiments.statistics import number
from paper.report.grids import NONE, Cell, Grid, Line, seconds_cell
from paper.report.results import PlainRun, Run

METRICS = {  # heading, decimals and scale of the test metrics of plain runs
    "accuracy": ("Accuracy (%)", 2, 100.0),
    "rmse": ("RMSE", 4, 1.0),
    "mae": ("Mean absolute error", 4, 1.0),
    "log_likelihood": ("Log-likelihood", 4, 1.0),
    "ece": ("Calibration error (%)", 2, 100.0),
    "brier": ("Brier score", 4, 1.0),
    "coverage95": ("Coverage of 95 % intervals (%)", 1, 100.0),
}
MOST_SETTINGS = 8  # columns


def plain_grid(runs: Sequence[PlainRun]) -> Grid:
    """Test metrics of runs of ``gramian train``, and the settings in which they differ."""
    metrics = {
        name: spec
        for name, spec in METRICS.items()
        if any(name in plain.run.metrics for plain in runs)
    }
    settings, rest = differing_settings(runs)
    lines = []
    for plain in runs:
        run = plain.run
        cells = [
            Cell(number(scale * run.metrics[name], decimals), scale * run.metrics[name])
            if name in run.metrics
            else Cell(NONE)
            for name, (_, decimals, scale) in metrics.items()
        ]
        cells += [Cell(str(len(run.epochs)), len(run.epochs)), seconds_cell(run.seconds_per_epoch)]
        cells += [_setting(plain.settings[name]) for name in settings]
        lines.append(Line(plain.key, _state(run), tuple(cells)))
    notes = ["Metrics of the test set, after training; settings in which the runs differ."]
    if rest:
        notes.append(f"They differ in more settings: {', '.join(rest)}.")
    headings = ("Run", *(spec[0] for spec in metrics.values()), "Epochs", "s / epoch", *settings)
    data = sorted({str(plain.settings.get("data", "unknown data")) for plain in runs})
    return Grid(
        key="plain-runs",
        title="Runs of gramian train — test metrics and settings",
        subtitle=f"{', '.join(data)}, {len(runs)} run{'s' if len(runs) > 1 else ''}",
        headings=headings,
        lines=tuple(lines),
        notes=tuple(notes),
        failures=tuple(
            f"{plain.key}, epoch {plain.run.failure.epoch}: {plain.run.failure.reason}"
            for plain in runs
            if plain.run.failure is not None
        ),
    )


def differing_settings(runs: Sequence[PlainRun]) -> tuple[list[str], list[str]]:
    """Names of the settings that not all runs share: those to show, and those there is no room for.

    Settings that only some runs have belong to their kind of model, which is itself a setting.
    """
    names = [name for name in runs[0].settings if all(name in plain.settings for plain in runs)]
    differ = [name for name in names if len({repr(plain.settings[name]) for plain in runs}) > 1]
    return differ[:MOST_SETTINGS], differ[MOST_SETTINGS:]


def _setting(value: object) -> Cell:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(NONE if value is None else str(value), value if is_number else None)  # type: ignore[arg-type]


def _state(run: Run) -> str:
    return "" if run.metrics else "failed" if run.failure else "unfinished"
