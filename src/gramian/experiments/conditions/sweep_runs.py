"""Train all curves of a figure, in one process or several, and draw it. Stops and goes on."""

from __future__ import annotations

import json
import logging
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import torch

from gramian.experiments.conditions.sweep import Curve, Figure
from gramian.experiments.conditions.toy import MODEL_SEED, Toy, check_same_config, config_of
from gramian.gram.errors import NumericalError
from gramian.train.record.checkpoint import CheckpointError
from gramian.train.record.files import write_text_atomically
from gramian.train.record.run_folder import environment
from gramian.train.runtime.signals import Stopped, StopSignals
from gramian.train.runtime.threads import num_threads

SAVE_EVERY = 200  # epochs
RESULT, STATE = "conditions.json", "state.ckpt"

log = logging.getLogger("gramian")


def run_figure(
    figure: Figure, folder: Path, *, epochs: int | None = None, jobs: int = 1, quiet: bool = False
) -> None:
    """Train what is not yet trained, then draw ``figure.png`` and ``figure.pdf``.

    A curve whose numbers fail is recorded as such, and the others go on. Ctrl-C and SIGTERM save
    the curves in training and raise ``Stopped``; the next call goes on there, bit for bit.

    Args:
        figure: an entry of ``FIGURES``.
        folder: of ``experiment.json`` and of ``<panel>/<curve>/conditions.json``.
        epochs: of each curve, if not those of the paper.
        jobs: processes, with one thread each.
        quiet: do not log a line for each curve.
    """
    from gramian.experiments.conditions.conditions_figure import (
        save_figure,  # fails early without matplotlib
    )

    epochs = figure.epochs if epochs is None else epochs
    if min(epochs, jobs) < 1:
        raise ValueError(f"epochs and jobs must be positive, got {epochs} and {jobs}")
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomically(folder / "experiment.json", json.dumps(describe(figure), indent=2) + "\n")
    tasks = tasks_of(figure, folder, epochs)
    with StopSignals() as signals:
        run = run_here if jobs == 1 else partial(run_in_processes, jobs=jobs)
        for line in run(tasks, lambda: signals.received is not None):
            if not quiet:
                log.info("%s", line)
        if signals.received is not None:
            raise Stopped(signals.received)
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
    """One curve to train for so many epochs, and the folder of its files."""

    name: str
    curve: Curve
    folder: Path
    epochs: int

    def run(self, stop: Callable[[], bool]) -> str | None:
        """Train until all is done, or the numbers fail, or ``stop``; a line on it, unless stopped.

        A curve that is done, or that has failed, is not trained again.
        """
        if (done := self.result()) is not None:
            return f"{self.name}: {self._line(done)} (done before)"
        self.folder.mkdir(parents=True, exist_ok=True)
        state, failure = self.folder / STATE, None
        toy = Toy(self.curve)
        if state.exists():
            toy.load(state)
        try:
            while len(toy.conditions) < self.epochs:
                if stop():
                    toy.save(state)
                    return None
                toy.train_epoch()
                if len(toy.conditions) % SAVE_EVERY == 0:
                    toy.save(state)
        except (NumericalError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
            failure = {"epoch": len(toy.conditions), "reason": str(error)}
        else:
            toy.save(state)
        result = {
            "condition_numbers": toy.conditions,
            "failure": failure,
            "seconds": toy.seconds,
            "config": toy.config,
            "environment": environment(MODEL_SEED, torch.device("cpu"), torch.float64),
        }
        write_text_atomically(self.folder / RESULT, json.dumps(result) + "\n")
        return f"{self.name}: {self._line(result)}"

    def result(self) -> dict[str, Any] | None:
        """What was written at the end; None if the end is still to come."""
        path = self.folder / RESULT
        if not path.exists():
            return None
        try:
            result: dict[str, Any] = json.loads(path.read_text())
            done = result["failure"] is not None or len(result["condition_numbers"]) >= self.epochs
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is damaged; remove it to train again") from error
        check_same_config(path, result["config"], config_of(self.curve))
        return result if done else None

    def _line(self, result: dict[str, Any]) -> str:
        numbers, failure = result["condition_numbers"], result["failure"]
        if failure is not None:
            return f"failed in epoch {failure['epoch']}: {failure['reason']}"
        pace = 1e3 * result["seconds"] / len(numbers)
        return f"{len(numbers)} epochs, condition number {numbers[-1]:.3g}, {pace:.1f} ms an epoch"


def tasks_of(figure: Figure, folder: Path, epochs: int) -> list[Task]:
    """The curves of all panels."""
    return [
        Task(f"{panel.key}/{curve.key}", curve, folder / panel.key / curve.key, epochs)
        for panel in figure.panels
        for curve in panel.curves
    ]


def run_here(tasks: Sequence[Task], stop: Callable[[], bool]) -> Iterator[str]:
    """Train one curve after the other, with one thread; a line for each."""
    with num_threads(1):
        for task in tasks:
            line = task.run(stop)
            if line is None:
                return
            yield line


def run_in_processes(tasks: Sequence[Task], stop: Callable[[], bool], jobs: int) -> Iterator[str]:
    """Train in ``jobs`` processes, each with its share of the curves; a line for each curve."""
    context = multiprocessing.get_context("spawn")
    stop_all, processes, pipes = context.Event(), [], []
    error: Exception | None = None
    for number in range(min(jobs, len(tasks))):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(tasks[number::jobs], stop_all, theirs))
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    while pipes:
        for pipe in wait(pipes, timeout=0.2):
            assert isinstance(pipe, Connection)
            try:
                answer = pipe.recv()
            except EOFError:
                pipes.remove(pipe)
                continue
            if isinstance(answer, Exception):
                error = error or answer
            else:
                yield answer
        if error is not None or stop():
            stop_all.set()
    for process in processes:
        process.join()
    if error is not None:
        raise error
    codes = [process.exitcode for process in processes]
    if any(codes) and not stop():
        raise RuntimeError(f"a process that trains curves ended with exit codes {codes}")


def _work(tasks: Sequence[Task], stop: Event, answers: Connection) -> None:
    """A process's share. Ctrl-C reaches it too, but it is the parent who says when to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    try:
        for line in run_here(
            tasks, lambda: stop.is_set() or parent is None or not parent.is_alive()
        ):
            answers.send(line)
    except Exception as error:
        answers.send(error)
