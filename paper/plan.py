"""What a reproduction consists of: its folder, its rows, and a run for each row and seed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gramian.train.config import ConfigError, TrainConfig
from gramian.train.record.files import write_json_atomically
from gramian.train.record.run_folder import RunFolder
from paper.published import quoted_rows
from paper.registry import Scale, Table, TableRow

ENDS = ("result.json", "failure.json")  # one of them is the last file of a run


@dataclass(frozen=True, slots=True)
class Changes:
    """What a user may change of all rows of a table; None leaves it as it is.

    Args:
        epochs: of the headline; rows with fewer epochs shrink with it.
        data: data set; all of its training points, unless ``train_size`` says how many.
        data_dir: where data sets are stored.
        precision: of all rows but those that set a precision (float64).
    """

    epochs: int | None = None
    data: str | None = None
    train_size: int | None = None
    data_dir: str | None = None
    precision: str | None = None
    batch_size: int | None = None

    def apply(self, headline: TrainConfig) -> TrainConfig:
        """The changed headline."""
        chosen = {key: value for key, value in asdict(self).items() if value is not None}
        if self.epochs is not None:
            chosen["max_epochs"] = chosen.pop("epochs")
        if self.data is not None or self.train_size is not None:
            chosen["train_size"] = self.train_size
        return replace(headline, **chosen)

    def suffix(self) -> str:
        """Of the folder's name, so that runs of different settings never meet."""
        parts = [
            Path(self.data).stem if self.data is not None else "",
            f"{self.train_size}points" if self.train_size is not None else "",
            f"{self.epochs}epochs" if self.epochs is not None else "",
            f"batch{self.batch_size}" if self.batch_size is not None else "",
            self.precision or "",
        ]
        return "".join(f"-{part}" for part in parts if part)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One row, by its key, with one seed."""

    key: str
    config: TrainConfig
    folder: RunFolder

    @property
    def name(self) -> str:
        """Row and seed, for messages."""
        return f"{self.key}, seed {self.config.seed}"

    @property
    def is_over(self) -> bool:
        """Whether there is a result or a failure: such a run is never repeated."""
        return any((self.folder.path / name).exists() for name in ENDS)


@dataclass(frozen=True, slots=True)
class Plan:
    """A table at one scale, with its folder.

    Args:
        table: which.
        scale: small or paper.
        seeds: how many, from 0 on.
        changes: of all rows.
        output: the folder of all reproductions.
        only: keys of rows, or empty for all.
        seed: only this one.
    """

    table: Table
    scale: Scale
    seeds: int
    changes: Changes
    output: Path
    only: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def folder(self) -> Path:
        """Where the results are."""
        return self.output / f"{self.table.name}-{self.scale}{self.changes.suffix()}"

    @property
    def headline(self) -> TrainConfig:
        """Settings of the full method."""
        return self.changes.apply(self.table.headline(self.scale))

    @property
    def rows(self) -> list[TableRow]:
        """The rows to run."""
        known = [row.key for row in self.table.rows]
        if unknown := sorted(set(self.only) - set(known)):
            raise ConfigError(f"no row {', '.join(unknown)}; rows are {', '.join(known)}")
        return [row for row in self.table.rows if not self.only or row.key in self.only]

    @property
    def each_seed(self) -> Sequence[int]:
        """The seeds to run."""
        return range(self.seeds) if self.seed is None else [self.seed]

    def runs(self) -> Iterator[PlannedRun]:
        """All rows with the first seed, then with the second: what is there is comparable."""
        headline, rows = self.headline, self.rows
        for seed in self.each_seed:
            for row in rows:
                folder = RunFolder(self.folder / row.key / f"seed{seed}")
                yield PlannedRun(row.key, replace(row.config(headline), seed=seed), folder)

    def write(self) -> None:
        """Say in experiment.json what the folder holds; the report reads it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        headline = self.headline
        facts = {
            "name": self.table.name,
            "kind": "table",
            "scale": self.scale,
            "title": self.table.title,
            "data": headline.data,
            "epochs": headline.max_epochs,
            "seeds": max(self.seeds, self._seeds_before()),
            "precision": headline.precision,
            "headline": "headline",
            "rows": [
                {
                    "key": row.key,
                    "label": row.title(headline),
                    "difference": row.difference,
                    "published": row.published,
                    "kind": row.config(headline).kind,
                }
                for row in self.table.rows
            ],
            "quoted": [asdict(row) for row in quoted_rows(self.table.name)],
        }
        write_json_atomically(self.folder / "experiment.json", facts)

    def _seeds_before(self) -> int:
        path = self.folder / "experiment.json"
        return int(json.loads(path.read_text())["seeds"]) if path.exists() else 0
