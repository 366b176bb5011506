"""What the paper published: tables and p-values as printed, results and curves of every seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

Metric = Literal["accuracy", "log_likelihood"]


@dataclass(frozen=True)
class Curve:
    """Metrics of one run against the epoch, thinned; the first epoch is 1.

    Test metrics are those after the epoch; training metrics are means over the epoch, with noise.
    """

    epochs: tuple[int, ...]
    train_accuracy: tuple[float, ...]
    test_accuracy: tuple[float, ...]
    train_log_likelihood: tuple[float, ...]
    test_log_likelihood: tuple[float, ...]


@dataclass(frozen=True)
class PublishedRun:
    """One seed; the final metrics are None if it stopped with a numerical error."""

    seed: int
    epochs: int  # complete ones
    accuracy: float | None  # a fraction
    log_likelihood: float | None
    curve: Curve


@dataclass(frozen=True)
class PublishedExperiment:
    """All seeds of one setting.

    Final metrics are those of the evaluation after training for deep kernel machines, and of the
    last epoch for networks.
    """

    key: str
    description: str
    data: str
    epochs: int
    seconds_per_epoch: float | None  # on an A100, without the test pass; None if not logged
    runs: tuple[PublishedRun, ...]

    def values(self, metric: Metric) -> tuple[float, ...]:
        """The metric of each run that was completed."""
        found = (getattr(run, metric) for run in self.runs)
        return tuple(value for value in found if value is not None)

    @property
    def failure_epochs(self) -> tuple[int, ...]:
        """The epoch, from 1, that each failed run was in: one more than it had completed."""
        return tuple(run.epochs + 1 for run in self.runs if run.accuracy is None)


@dataclass(frozen=True)
class PrintedRow:
    """A row of a table, as printed; ``experiment`` is None if it is quoted from elsewhere."""

    label: str
    accuracy: str
    log_likelihood: str
    failures: str | None
    experiment: str | None


@dataclass(frozen=True)
class PrintedP:
    """A p-value of the paper's text: two-tailed t-test with unequal variances."""

    first: str
    second: str
    metric: Metric
    printed: str


@cache
def experiments() -> Mapping[str, PublishedExperiment]:
    """The 13 logged experiments, by key."""
    return {key: _experiment(key, values) for key, values in _file()["experiments"].items()}


@cache
def printed_tables() -> Mapping[str, tuple[PrintedRow, ...]]:
    """Tables 1 to 3, by the names ``table1`` to ``table3``."""
    tables = _file()["tables"].items()
    return {name: tuple(PrintedRow(**row) for row in rows) for name, rows in tables}


@cache
def printed_p_values() -> tuple[PrintedP, ...]:
    """The five p-values."""
    return tuple(PrintedP(**values) for values in _file()["p_values"])


def quoted_rows(table: str) -> tuple[PrintedRow, ...]:
    """The rows of a table that the paper quotes from elsewhere; none for another table."""
    return tuple(row for row in printed_tables().get(table, ()) if row.experiment is None)


def printed_row(experiment: str) -> PrintedRow | None:
    """An experiment as it is printed, in Table 3 if it is there; None if it is not printed."""
    rows = [row for table in printed_tables().values() for row in table]
    found = [row for row in rows if row.experiment == experiment]
    return found[-1] if found else None


def _experiment(key: str, values: Mapping[str, Any]) -> PublishedExperiment:
    runs = tuple(
        PublishedRun(
            seed=run["seed"],
            epochs=run["epochs"],
            accuracy=run["accuracy"],
            log_likelihood=run["log_likelihood"],
            curve=Curve(**{name: tuple(column) for name, column in run["curve"].items()}),
        )
        for run in values["runs"]
    )
    facts = {name: value for name, value in values.items() if name != "runs"}
    return PublishedExperiment(key=key, runs=runs, **facts)


def _file() -> dict[str, Any]:
    path = resources.files("paper") / "published.json"
    return json.loads(path.read_text(encoding="utf-8"))
