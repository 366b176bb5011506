"""What a report is about: tables of rows of runs, plain runs, and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper.published import Metric, PublishedExperiment, experiments
from paper.registry import Table, TableRow

Json = dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """A numerical error that ended a run; the first epoch is 1, the first step 0."""

    epoch: int
    reason: str
    step: int | None = None


@dataclass(frozen=True)
class Run:
    """One run: finished (has metrics), failed, or neither yet.

    Args:
        seed: of the run.
        metrics: of the test set; empty if the run is not finished.
        clipped: whether its log-likelihood is the clipped one, as the paper's.
        failure: what ended it.
        seconds_per_epoch: None before the first epoch.
        epochs: the rows of metrics.jsonl.
        commit: that it was made with.
    """

    seed: int
    metrics: Mapping[str, float]
    clipped: bool
    failure: Failure | None
    seconds_per_epoch: float | None
    epochs: tuple[Json, ...]
    commit: str | None

    @property
    def accuracy(self) -> float | None:
        """The share of correct predictions."""
        return self.metrics.get("accuracy")

    @property
    def log_likelihood(self) -> float | None:
        """Of the test set, clipped or not."""
        return self.metrics.get("log_likelihood_clipped" if self.clipped else "log_likelihood")

    @property
    def condition(self) -> float | None:
        """The largest condition number of a Gram matrix when they were last recorded."""
        for row in reversed(self.epochs):
            found = [value for name, value in row.items() if name.startswith("condition/")]
            if found:
                return float(max(found))
        return None


@dataclass(frozen=True, kw_only=True)
class RowResults(TableRow):
    """A row of a table with its runs, one for each seed."""

    runs: tuple[Run, ...]
    planned: int

    @property
    def theirs(self) -> PublishedExperiment | None:
        """The published runs."""
        return None if self.published is None else experiments()[self.published]

    def values(self, metric: Metric) -> tuple[float, ...]:
        """The metric of each finished run."""
        found = (getattr(run, metric) for run in self.runs)
        return tuple(value for value in found if value is not None)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Those of the failed runs, in the order of the seeds."""
        return tuple(run.failure for run in self.runs if run.failure is not None)

    @property
    def total(self) -> int:
        """Seeds that were planned, or run if more were."""
        return max(self.planned, len(self.runs))

    @property
    def unfinished(self) -> int:
        """Seeds that have neither metrics nor a failure, begun or not."""
        return self.total - len(self.values("accuracy")) - len(self.failures)


@dataclass(frozen=True, kw_only=True)
class TableResults(Table):
    """One table, of the paper or beyond it, at one scale and precision.

    ``key`` is the name of its folder; ``headline_key`` that of the row with which the others are
    compared; ``quoted`` are labels, accuracies and log-likelihoods as printed.
    """

    key: str
    scale: str
    epochs: int
    seeds: int
    precision: str
    headline_key: str
    rows: tuple[RowResults, ...]
    quoted: tuple[tuple[str, str, str], ...]

    @property
    def reference(self) -> RowResults:
        """The headline's row."""
        return next(row for row in self.rows if row.key == self.headline_key)

    @property
    def is_of_paper(self) -> bool:
        """Whether the paper has such a table: some row has published runs beside it."""
        return any(row.published is not None for row in self.rows)

    @property
    def is_as_published(self) -> bool:
        """Whether data and length are the published ones, at the paper's scale."""
        theirs = self.reference.theirs
        same = theirs is None or (theirs.data, theirs.epochs) == (self.data, self.epochs)
        return self.scale == "paper" and same


@dataclass(frozen=True)
class PlainRun:
    """A run of ``gramian train``: its folder's name, and its settings by dotted names."""

    key: str
    settings: Mapping[str, Any]
    run: Run


@dataclass(frozen=True)
class Picture:
    """A figure that was drawn when its experiment was run."""

    key: str
    title: str
    path: Path


@dataclass(frozen=True)
class Results:
    """All that was found."""

    tables: tuple[TableResults, ...]
    plain_runs: tuple[PlainRun, ...]
    pictures: tuple[Picture, ...]

    @property
    def commits(self) -> tuple[str, ...]:
        """Commits that the runs were made with."""
        runs = [run for table in self.tables for row in table.rows for run in row.runs]
        runs += [plain.run for plain in self.plain_runs]
        return tuple(sorted({run.commit for run in runs if run.commit}))
