"""What a person sees while a model trains: a live bar in a terminal, or one line per epoch."""

from __future__ import annotations

import logging
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gramian.train.record.run_folder import Row

SHOWN = {
    "accuracy": ("acc", ".2%"),
    "rmse": ("rmse", ".4g"),
    "rmse_standardised": ("rmse/std", ".4g"),
    "log_likelihood": ("ll", ".4f"),
}
"""Of each data set: metric, label, format."""

log = logging.getLogger("gramian")


class MessageConsole(Console):
    """Print to standard error, and go on in silence when its reader has gone."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(stderr=True, quiet=quiet)

    def on_broken_pipe(self) -> None:
        """Rich's own ends the program."""
        self.quiet = True


class ProgressView:
    """Progress of one run, on standard error.

    Args:
        epochs: of the whole run.
        steps_per_epoch: steps of each.
        quiet: show nothing.
    """

    def __init__(self, epochs: int, steps_per_epoch: int, quiet: bool = False) -> None:
        self.epochs = epochs
        self.steps_per_epoch = steps_per_epoch
        self.quiet = quiet
        self.console = MessageConsole()
        self.bar: Progress | None = None
        self.started = time.perf_counter()
        self.first_step: int | None = None

    def __enter__(self) -> ProgressView:
        self.started = time.perf_counter()
        if self.console.is_terminal and not self.quiet:
            self.bar = Progress(
                TextColumn("epoch {task.fields[epoch]}/" + str(self.epochs)),
                BarColumn(),
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                TextColumn("{task.fields[metrics]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self.console,
            )
            total = self.epochs * self.steps_per_epoch
            self.bar.add_task("train", total=total, epoch=1, metrics="")
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def step(self, step: int, loss: float, accuracy: float, lr: float) -> None:
        """One step is done; ``step`` counts from 1."""
        if self.first_step is None:
            self.first_step = step - 1
        if self.bar is not None:
            epoch = min((step - 1) // self.steps_per_epoch + 1, self.epochs)
            metrics = f"loss {loss:.3f}  accuracy {accuracy:.1%}  lr {lr:.1e}"
            self.bar.update(self.bar.task_ids[0], completed=step, epoch=epoch, metrics=metrics)

    def epoch(self, row: Row) -> None:
        """One epoch is done: a plain line, if there is no bar."""
        if self.quiet:
            return
        parts = [f"epoch {row['epoch']:.0f}/{self.epochs}", f"objective {row['objective']:.4f}"]
        names = {"train": "train", "validation": "val", "test": "test"}
        for key, name in names.items():
            for metric, (label, form) in SHOWN.items():
                value = row.get(f"{key}_{metric}")
                if value is not None:
                    parts.append(f"{name} {label} {value:{form}}")
        done = row["step"] - (self.first_step or 0)
        total = self.epochs * self.steps_per_epoch
        elapsed = time.perf_counter() - self.started
        left = elapsed / max(done, 1) * (total - row["step"])
        parts.append(f"{elapsed:.0f} s, {left:.0f} s left")
        self.console.print("  ".join(parts), highlight=False, soft_wrap=True)
