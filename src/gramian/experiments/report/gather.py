"""Result folders as values: tables of rows of runs, and figures. Nothing else reads the files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from gramian.experiments import published
from gramian.experiments.published import Metric, PublishedExperiment
from gramian.train.data.errors import DataError, DataMissingError


@dataclass(frozen=True)
class Failure:
    """A numerical error that ended a run; the first epoch is 1."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class Run:
    """One seed: finished (has figures), failed, or neither yet."""

    seed: int
    accuracy: float | None
    log_likelihood: float | None
    clipped: bool  # the log-likelihood is the clipped one, as the paper's
    failure: Failure | None
    seconds_per_epoch: float | None
    epochs: tuple[dict[str, Any], ...]  # the rows of metrics.jsonl
    commit: str | None


@dataclass(frozen=True)
class TableRow:
    """One setting, all seeds."""

    key: str
    label: str
    difference: str
    published: PublishedExperiment | None
    runs: tuple[Run, ...]
    planned: int

    def values(self, metric: Metric) -> tuple[float, ...]:
        """The figure of each finished run."""
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
        """Seeds that have neither figures nor a failure, begun or not."""
        return self.total - len(self.values("accuracy")) - len(self.failures)


@dataclass(frozen=True)
class Table:
    """One table of the paper at one scale and precision."""

    key: str  # name of its folder
    name: str
    scale: str
    title: str
    data: str
    epochs: int
    seeds: int
    precision: str
    headline: str  # key of the row with which the others are compared
    rows: tuple[TableRow, ...]
    quoted: tuple[tuple[str, str, str], ...]  # label, accuracy, log-likelihood as printed

    @property
    def reference(self) -> TableRow:
        """The headline's row."""
        return next(row for row in self.rows if row.key == self.headline)

    @property
    def is_as_published(self) -> bool:
        """Whether data and length are the published ones, at the paper's scale."""
        theirs = self.reference.published
        same = theirs is None or (theirs.data, theirs.epochs) == (self.data, self.epochs)
        return self.scale == "paper" and same


@dataclass(frozen=True)
class Picture:
    """A figure that was drawn when its experiment was run."""

    key: str
    title: str
    path: Path


@dataclass(frozen=True)
class Results:
    """All that was found."""

    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]

    @property
    def commits(self) -> tuple[str, ...]:
        """Commits that the runs were made with."""
        rows = [row for table in self.tables for row in table.rows]
        return tuple(sorted({run.commit for row in rows for run in row.runs if run.commit}))


def gather(folders: Sequence[Path]) -> Results:
    """Read result folders, given by themselves or as folders that hold several."""
    found: dict[Path, None] = {}  # in order, each once
    for folder in folders:
        if not folder.is_dir():
            raise DataMissingError(f"{folder} is no folder")
        inside = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
        found |= {path.resolve(): None for path in inside if (path / "experiment.json").exists()}
    if not found:
        names = ", ".join(map(str, folders))
        raise DataMissingError(f"no results in {names}: no experiment.json there or one level down")
    tables, pictures = [], []
    for folder, name in zip(found, _names(list(found)), strict=True):
        path = folder / "experiment.json"
        facts = _json(path)
        kind = facts.get("kind")
        try:
            if kind == "table":
                tables.append(_table(name, folder, facts))
            elif kind == "conditions":
                image = folder / "figure.png"
                if image.exists():  # otherwise the experiment is under way
                    pictures.append(Picture(name, facts["title"], image))
            else:
                raise DataError(f"{path}: kind must be table or conditions, got {kind!r}")
        except KeyError as error:
            raise DataError(f"{path} lacks {error}") from error
        except TypeError as error:
            raise DataError(f"{path} is damaged: {error}") from error
    if not tables and not pictures:
        raise DataMissingError(f"no results yet: {', '.join(map(str, found))} has no figure.png")
    return Results(tuple(tables), tuple(pictures))


def _names(folders: Sequence[Path]) -> list[str]:
    """A name for each folder, with that of its parent where several are called the same."""
    names = [folder.name for folder in folders]
    return [
        f"{folder.parent.name}-{name}" if names.count(name) > 1 else name
        for folder, name in zip(folders, names, strict=True)
    ]


def _table(key: str, folder: Path, facts: dict[str, Any]) -> Table:
    rows = tuple(_row(folder, row, facts["seeds"]) for row in facts["rows"])
    keys = [row.key for row in rows]
    if facts["headline"] not in keys:
        raise DataError(f"{folder / 'experiment.json'}: headline is none of {', '.join(keys)}")
    return Table(
        key=key,
        rows=rows,
        quoted=tuple(
            (row["label"], row["accuracy"], row["log_likelihood"])
            for row in facts.get("quoted", [])
        ),
        **{
            name: facts[name]
            for name in ("name", "scale", "title", "data", "epochs", "seeds", "precision")
        },
        headline=facts["headline"],
    )


def _row(folder: Path, facts: dict[str, Any], planned: int) -> TableRow:
    known = published.experiments()
    name = facts.get("published")
    if name is not None and name not in known:
        raise DataError(f"{folder / 'experiment.json'}: {name!r} is no published experiment")
    seeds = {
        int(path.name.removeprefix("seed")): path
        for path in (folder / facts["key"]).glob("seed*")
        if path.name.removeprefix("seed").isdecimal()
    }
    return TableRow(
        key=facts["key"],
        label=facts["label"],
        difference=facts.get("difference", ""),
        published=known[name] if name is not None else None,
        runs=tuple(
            _run(seed, seeds[seed], facts.get("kind") == "network") for seed in sorted(seeds)
        ),
        planned=planned,
    )


def _run(seed: int, folder: Path, is_network: bool) -> Run:
    """One run. The paper clips the log-likelihoods of deep kernel machines, not of networks."""
    epochs = _epochs(folder / "metrics.jsonl")
    seconds = [row["seconds"] for row in epochs if "seconds" in row]
    accuracy = log_likelihood = failure = None
    clipped = False
    result_path, failure_path = folder / "result.json", folder / "failure.json"
    if result_path.exists():
        result = _json(result_path)
        try:
            figures = result["figures"]["test"]
            clipped = not is_network and "log_likelihood_clipped" in figures
            accuracy = float(figures["accuracy"])
            log_likelihood = float(
                figures["log_likelihood_clipped" if clipped else "log_likelihood"]
            )
            if not seconds and result.get("epochs"):
                seconds = [result["train_seconds"] / result["epochs"]]
        except (KeyError, TypeError) as error:
            raise DataError(f"{result_path} has no complete test figures: {error}") from error
    elif failure_path.exists():
        facts = _json(failure_path)
        place = facts.get("layer")
        reason = f"{place}: {facts.get('reason', '')}" if place else str(facts.get("reason", ""))
        if not isinstance(facts.get("epoch"), int):
            raise DataError(f"{failure_path} does not say in which epoch")
        failure = Failure(facts["epoch"], reason)
    environment = folder / "env.json"
    return Run(
        seed=seed,
        accuracy=accuracy,
        log_likelihood=log_likelihood,
        clipped=clipped,
        failure=failure,
        seconds_per_epoch=fmean(seconds) if seconds else None,
        epochs=tuple(epochs),
        commit=_json(environment).get("commit") if environment.exists() else None,
    )


def _json(path: Path) -> dict[str, Any]:
    return _object(path.read_text(encoding="utf-8", errors="replace"), str(path))


def _epochs(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        rows.append(_object(line, f"{path}, line {number}"))
        if "epoch" not in rows[-1]:
            raise DataError(f"{path}, line {number} is damaged: no epoch")
    return rows


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DataError(f"{where} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{where} is damaged: not a JSON object")
    return value
