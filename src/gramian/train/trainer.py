"""The training loop: from the first step to the last, resumable at any of them."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable

import torch

from gramian.gram.errors import NumericalError
from gramian.train.config import ConfigError, TrainConfig
from gramian.train.cost.expectation import expectation
from gramian.train.cost.step_memory import set_recomputed_
from gramian.train.optimise import Best, best_of, build_optimiser, is_over, lr_factor
from gramian.train.predict.evaluate import condition_numbers, evaluate, figures
from gramian.train.predict.predictor import Predictor
from gramian.train.record.checkpoint import CheckpointError, State, check_same_settings
from gramian.train.record.progress import ProgressView
from gramian.train.record.run_folder import Row, RunFolder
from gramian.train.runtime.engine import Engine
from gramian.train.runtime.memory import peak_bytes
from gramian.train.runtime.seeds import generator
from gramian.train.runtime.signals import Stopped, StopSignals
from gramian.train.step import (
    Place,
    StepResult,
    add_step,
    batch_indices,
    check_finite,
    epoch_row,
    step_objective,
)
from gramian.train.task import Task

log = logging.getLogger("gramian")

# Settings that a continuation may change: they do not change the numbers of a run.
FREE = {"data_dir", "device", "checkpoint_minutes", "conditions"}


class TrainingFailed(Exception):
    """Training stopped for a numerical reason, after all that on_numerical_error allows."""

    exit_code = 3

    def __init__(self, epoch: int, step: int, error: NumericalError) -> None:
        super().__init__(f"epoch {epoch}, step {step}: {error}")
        self.epoch, self.step, self.layer, self.reason = epoch, step, error.layer, error.reason()


class Trainer:
    """Fits a predictor's model to a task.

    Args:
        predictor: the model, initialised or not, and its scaling.
        task: the data.
        config: settings.
        engine: device, precision and processes.
        folder: where the run is recorded; None for no record.
        quiet: show no progress.
        on_epoch: called with the figures of each epoch.
    """

    def __init__(
        self,
        predictor: Predictor,
        task: Task,
        config: TrainConfig,
        engine: Engine,
        folder: RunFolder | None = None,
        quiet: bool = False,
        on_epoch: Callable[[Row], object] | None = None,
    ) -> None:
        if engine.world_size > 1 and config.on_numerical_error != "raise":
            raise ConfigError("with several processes on_numerical_error must be raise")
        self.predictor = predictor
        self.task = task
        self.config = config
        self.engine = engine
        self.on_epoch = on_epoch
        self.folder = folder
        self.writes = engine.is_first and folder is not None
        self.model = predictor.model.to(engine.dtype).train()
        self.batch_size = min(config.batch_size, len(task.train))
        share = math.ceil(self.batch_size / engine.world_size)
        set_recomputed_(self.model, share, config)
        self.steps_per_epoch = math.ceil(len(task.train) / self.batch_size)
        self.total_steps = self.steps_per_epoch * config.max_epochs
        self.quiet = quiet
        silent = quiet or not engine.is_first
        self.view = ProgressView(config.max_epochs, self.steps_per_epoch, silent)
        self.step = 0  # steps done
        self.attempt = 0  # rollbacks done
        self.num_errors = 0  # numerical errors met
        self.sums: dict[str, int | float] = {}  # of the epoch under way
        self.rows: list[Row] = []
        self.best: Best | None = None
        self.last_saved: State | None = None

    # ---- the loop ----

    def fit(self, resume: bool = True) -> list[Row]:
        """Train to the end; a row of figures an epoch."""
        with self.engine.arithmetic():
            self.start(resume)
            self.loop()
            self.finish()
        return self.rows

    def loop(self) -> None:
        """Step after step, with each epoch's figures and with checkpoints between."""
        patience = self.config.patience
        saved_at = time.monotonic()
        with StopSignals() as stop, self.view:
            while self.step < self.total_steps and not is_over(self.best, self.rows, patience):
                self.train_step()
                ended = self.step % self.steps_per_epoch == 0 and bool(self.sums)
                if ended:
                    self.end_epoch()
                overdue = time.monotonic() - saved_at > 60 * self.config.checkpoint_minutes
                if ended or overdue or stop.received:
                    self.save_checkpoint()
                    saved_at = time.monotonic()
                if stop.received:
                    raise Stopped(stop.received)

    def train_step(self) -> None:
        """One step on one batch."""
        started = time.perf_counter()
        lr = self.learning_rate()
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        means = [mean.clone() for mean in self.model.running_statistics()]
        try:
            self.optimiser.zero_grad()  # first, so that old gradients take no memory
            result = self.objective()
            self.engine.backward(result.terms.loss)
            check_finite(self.model, result.terms)
        except NumericalError as error:
            for mean, before in zip(self.model.running_statistics(), means, strict=True):
                mean.copy_(before)
            self.numerical_error(error)
            return
        self.optimiser.step()
        self.step += 1
        self.sums = add_step(self.sums, result, time.perf_counter() - started)
        accuracy = result.correct / result.count
        self.view.step(self.step, result.terms.loss.item(), accuracy, lr)

    def objective(self) -> StepResult:
        """The objective at the present step."""
        place = Place(self.config.seed, self.step, self.attempt)
        indices = batch_indices(len(self.task.train), self.batch_size, place)
        scales = self.predictor.target_scale
        shift, scale = (torch.tensor(values, dtype=torch.float64) for values in scales)
        return step_objective(
            self.forward, self.model, self.task, indices, place, self.engine, (shift, scale)
        )

    def learning_rate(self) -> float:
        """The learning rate at the present step."""
        c = self.config
        factor = lr_factor(c.schedule, self.step, self.steps_per_epoch, c.max_epochs, c.milestones)
        return c.lr * factor

    # ---- figures ----

    def end_epoch(self) -> None:
        """Make the epoch's row of figures, and show and write it."""
        epoch = self.step // self.steps_per_epoch
        row: Row = {"epoch": epoch, "step": self.step, "lr": self.optimiser.param_groups[0]["lr"]}
        row |= epoch_row(self.sums, self.engine, bool(self.task.train.class_names))
        row |= {"memory_mb": peak_bytes() / 2**20, "numerical_errors": self.num_errors}
        self.sums = {}
        if epoch % self.config.evaluate_every == 0 or self.step == self.total_steps:
            row |= self.evaluate()
        self.rows.append(row)
        if self.config.patience is not None:
            self.best = best_of(self.best, row, self.model)
        self.view.epoch(row)
        if self.on_epoch is not None and self.engine.is_first:
            self.on_epoch(row)
        if self.folder is not None and self.writes:
            self.folder.write_metrics(self.rows)

    def evaluate(self) -> Row:
        """Figures on the validation and test sets, and condition numbers."""
        row: Row = {}
        for name, data in (("validation", self.task.validation), ("test", self.task.test)):
            if data is not None:
                numbers = figures(evaluate(self.predictor, data))
                row |= {f"{name}_{key}": value for key, value in numbers.items()}
        if self.config.conditions:
            numbers = condition_numbers(self.model)
            row |= {f"condition/{path}": value for path, value in numbers.items()}
        return row

    def finish(self) -> None:
        """Take the best model if patience chose one, make the statistics exact, and save it."""
        if self.best is not None:
            self.model.load_state_dict(self.best["model"])
        if self.config.estimate_statistics:
            draw = generator(self.config.seed, "statistics")
            some = torch.randperm(len(self.task.train), generator=draw)[:10_000]
            # Augmented as in training: the layers have learned relative to that scale.
            self.model.estimate_statistics_(
                self.task.inputs(self.task.train.x[part], draw, self.engine.dtype).to(
                    self.engine.device
                )
                for part in some.split(256)
            )
        self.engine.tear_down(self.model)
        self.model.eval()
        if self.folder is not None and self.writes:
            self.predictor.save_pretrained(self.folder.model)

    # ---- start, stop, trouble ----

    def start(self, resume: bool) -> None:
        """Give the model start values, or take up the newest checkpoint."""
        saved = self.folder.checkpoints.newest() if self.folder is not None and resume else None
        if saved is None and not self.model.initialised:
            draw = generator(self.config.seed, "start")
            x = self.task.inputs(self.task.train.x, draw, self.engine.dtype)
            self.model.initialise_(x, draw)
        self.model.to(self.engine.device)
        optimiser = build_optimiser(self.model, self.config)
        self.forward, self.optimiser = self.engine.set_up(self.model, optimiser)
        if saved is not None:
            check_same_settings(saved["config"], self.config.to_dict(), FREE)
            self.load_state(saved)
            self._say("resuming at epoch %.2f", self.step / self.steps_per_epoch)
        self.last_saved = self.state()
        if not self.quiet:  # all processes try, one says it
            self._say(expectation(self.task, self.config, self.model, self.trial_seconds()))

    def trial_seconds(self) -> float:
        """Seconds for one step, tried without taking it; the first of two warms up."""
        means = [mean.clone() for mean in self.model.running_statistics()]
        try:
            for _ in range(2):
                started = time.perf_counter()
                self.engine.backward(self.objective().terms.loss)
        except NumericalError:
            return math.nan  # training will meet it too, and knows what to do
        finally:
            self.optimiser.zero_grad()
            for mean, before in zip(self.model.running_statistics(), means, strict=True):
                mean.copy_(before)
        return time.perf_counter() - started

    def state(self) -> State:
        """All that the rest of the run depends on. Noise is a function of seed and step."""
        return {
            "model": copy.deepcopy(self.model.state_dict()),
            "optimiser": copy.deepcopy(self.optimiser.state_dict()),
            "step": self.step,
            "attempt": self.attempt,
            "num_errors": self.num_errors,
            "sums": dict(self.sums),
            "rows": [dict(row) for row in self.rows],
            "best": self.best,
            "config": self.config.to_dict(),
        }

    def load_state(self, state: State) -> None:
        """Go (back) to a state."""
        try:
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(f"the checkpoint is of another model: {error}") from error
        self.step, self.attempt = state["step"], state["attempt"]
        self.num_errors, self.best = state["num_errors"], state["best"]
        self.sums = dict(state["sums"])
        self.rows = [dict(row) for row in state["rows"]]

    def save_checkpoint(self) -> None:
        """Keep the state, and write it if the run has a folder."""
        self.last_saved = self.state()
        if self.folder is not None and self.writes:
            self.folder.checkpoints.save(self.step, self.last_saved)

    def numerical_error(self, error: NumericalError) -> None:
        """Raise, skip the batch, or go back to the last checkpoint and on with other noise."""
        self.num_errors += 1
        failed = TrainingFailed(self.step // self.steps_per_epoch + 1, self.step + 1, error)
        policy = self.config.on_numerical_error
        if policy == "raise" or self.num_errors > self.config.max_numerical_errors:
            raise failed from error
        log.warning("%s: %s", "skipping a batch" if policy == "skip" else "rolling back", failed)
        if policy == "skip":
            self.step += 1
            return
        assert self.last_saved is not None
        num_errors, attempt = self.num_errors, self.attempt + 1
        self.load_state(self.last_saved)
        self.num_errors, self.attempt = num_errors, attempt

    def _say(self, message: str, *values: float) -> None:
        if self.engine.is_first:
            log.info(message, *values)
