"""Train all curves of a figure, in one process or several, and draw it."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gramian.experiments.pool import run_jobs
from gramian.gram.errors import NumericalError
from gramian.train.record.checkpoint import CheckpointError
from gramian.train.record.files import write_json_atomically, write_text_atomically
from gramian.train.record.run_folder import environment
from gramian.train.runtime.signals import Stopped, StopSignals
from gramian.train.runtime.threads import num_threads
from paper.conditions.sine_toy import MODEL_SEED, Toy, config_of
from paper.conditions.sweep import Curve, Figure

RESULT = "conditions.json"

log = logging.getLogger("gramian")


def run_figure(
    figure: Figure, folder: Path, *, epochs: int | None = None, jobs: int = 1, quiet: bool = False
) -> None:
    """Train what is not yet trained, then draw ``figure.png`` and ``figure.pdf``.

    A curve whose numbers fail is recorded as such, and the others go on. Ctrl-C and SIGTERM raise
    ``Stopped``; the next call trains the curves that are not done.

    Args:
        figure: an entry of ``FIGURES``.
        folder: of ``experiment.json`` and of ``<panel>/<curve>/conditions.json``.
        epochs: of each curve, if not those of the paper.
        jobs: processes, with one thread each.
        quiet: do not log a line for each curve.
    """
    from paper.conditions.conditions_figure import (
        save_figure,  # fails early without matplotlib
    )

    epochs = figure.epochs if epochs is None else epochs
    if min(epochs, jobs) < 1:
        raise ValueError(f"epochs and jobs must be positive, got {epochs} and {jobs}")
    folder.mkdir(parents=True, exist_ok=True)
    write_json_atomically(folder / "experiment.json", describe(figure))
    tasks = tasks_of(figure, folder, epochs)
    for line in run_jobs({task.name: partial(train_curve, task) for task in tasks}, jobs):
        if not quiet:
            log.info("%s", line)
    save_figure(figure, folder)


def describe(figure: Figure) -> dict[str, Any]:
    """What is in the folder of a figure."""
    panels = [
        {
            "key": panel.key,
            "title": panel.title,
            "published": panel.published,
            "curves": [
                {"key": curve.key, "label": curve.label, "published_row": curve.published}
                for curve in panel.curves
            ],
        }
        for panel in figure.panels
    ]
    return {
        "name": figure.name,
        "kind": "conditions",
        "title": figure.title,
        "panels": panels,
    }


@dataclass(frozen=True)
class Task:
    """One curve to train for so many epochs, and the folder of its file."""

    name: str
    curve: Curve
    folder: Path
    epochs: int

    def result(self) -> dict[str, Any] | None:
        """What was written at the end; None if the end is still to come."""
        path = self.folder / RESULT
        if not path.exists():
            return None
        try:
            result: dict[str, Any] = json.loads(path.read_text())
            done = result["failure"] is not None or len(result["condition_numbers"]) >= self.epochs
            before = result["config"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is damaged; remove it to train again") from error
        if before != (now := config_of(self.curve)):
            raise CheckpointError(
                f"{path} has other settings ({before} instead of {now}): choose another folder"
            )
        return result if done else None

    def line(self, result: dict[str, Any]) -> str:
        """What came of it."""
        numbers, failure = result["condition_numbers"], result["failure"]
        if failure is not None:
            return f"{self.name}: failed in epoch {failure['epoch']}: {failure['reason']}"
        found = f"{len(numbers)} epochs, condition number {numbers[-1]:.3g}"
        return f"{self.name}: {found}, {1e3 * result['seconds'] / len(numbers):.1f} ms per epoch"


def tasks_of(figure: Figure, folder: Path, epochs: int) -> list[Task]:
    """The curves of all panels."""
    return [
        Task(f"{panel.key}/{curve.key}", curve, folder / panel.key / curve.key, epochs)
        for panel in figure.panels
        for curve in panel.curves
    ]


def train_curve(task: Task) -> str:
    """Train one curve with one thread, until its numbers fail or all is done; a line on it.

    A curve that is done, or that has failed, is not trained again.
    """
    if (done := task.result()) is not None:
        return f"{task.line(done)} (done before)"
    toy, failure = Toy(task.curve), None
    with num_threads(1), StopSignals() as signals:
        try:
            while len(toy.conditions) < task.epochs:
                toy.train_epoch()
                if signals.received is not None:
                    raise Stopped(signals.received)
        except (NumericalError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
            failure = {"epoch": len(toy.conditions), "reason": str(error)}
    result = {
        "condition_numbers": toy.conditions,
        "failure": failure,
        "seconds": toy.seconds,
        "config": config_of(task.curve),
        "environment": environment(MODEL_SEED, torch.device("cpu"), torch.float64),
    }
    task.folder.mkdir(parents=True, exist_ok=True)
    write_text_atomically(task.folder / RESULT, json.dumps(result) + "\n")
    return task.line(result)
