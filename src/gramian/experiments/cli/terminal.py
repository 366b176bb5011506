"""Results on standard output: tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gramian.experiments.escapes import printable

ROWS = {
    "num": ("data points", ",.0f"),
    "accuracy": ("accuracy", ".2%"),
    "rmse": ("RMSE", ".4g"),
    "mae": ("mean absolute error", ".4g"),
    "rmse_standardised": ("RMSE, in deviations of the targets", ".4g"),
    "mae_standardised": ("mean absolute error, in deviations", ".4g"),
    "log_likelihood": ("log-likelihood", ".4f"),
    "log_likelihood_clipped": ("log-likelihood, clipped as published", ".4f"),
    "ece": ("calibration error (ECE)", ".4f"),
    "ece_mass": ("the same, bins of equal mass", ".4f"),
    "classwise_ece": ("the same, mean over the classes", ".4f"),
    "brier": ("Brier score", ".4f"),
    "aurc": ("area under risk against coverage", ".4f"),
    "coverage95": ("coverage of 95 % intervals", ".1%"),
}


def show_metrics(title: str, columns: Mapping[str, Mapping[str, float]]) -> None:
    """A table with a column for each data set."""
    table = Table(title=Text(printable(title)), title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(Text(printable(name)), justify="right")
    found = dict.fromkeys(key for values in columns.values() for key in values)
    numbered = {key: re.fullmatch(r"(rmse|mae)_(\d+)", key) for key in found}
    rows = ROWS | {
        key: (f"{ROWS[part[1]][0]}, target {int(part[2]) + 1}", ".4g")
        for key, part in numbered.items()
        if part
    }
    for key, (label, form) in rows.items():
        if key in found:
            cells = (
                format(values[key], form) if key in values else "" for values in columns.values()
            )
            table.add_row(label, *cells)
    Console(file=sys.stdout).print(table)


def show_detections(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """How well each score tells other data from the test set: a table for each of those."""
    columns = {"auroc": "AUROC", "aupr": "AUPR", "fpr95": "FPR at 95 %"}
    for name, scores in found.items():
        title = Text(printable(f"Is {name} unlike the training data?"))
        table = Table(title=title, title_justify="left")
        table.add_column("score")
        for label in columns.values():
            table.add_column(label, justify="right")
        for score, values in scores.items():
            cells = (f"{values[key]:.4f}" for key in columns)
            table.add_row(score.replace("_", " "), *cells)
        Console(file=sys.stdout).print(table)


def as_json(values: Any) -> str:
    """One line of JSON; numbers that JSON cannot hold (NaN and infinity) are null."""
    return json.dumps(_finite(values), allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
