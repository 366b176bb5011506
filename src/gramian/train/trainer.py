"""The training loop: from the first step to the last, resumable at any of them."""

from __future__ import annotations

import copy
import logging
import math
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from gramian.explained import Explained
from gramian.gram.errors import NonFiniteError, NumericalError, deferred_checks
from gramian.nn.baseline.network import NetworkConfig
from gramian.nn.contract import training
from gramian.nn.likelihoods.metric_sums import Metrics
from gramian.train.config import ConfigError, TrainConfig
from gramian.train.cost.expectation import expectation
from gramian.train.cost.step_memory import set_recomputed_
from gramian.train.optimise import (
    Best,
    best_of,
    build_optimiser,
    is_over,
    lr_factor,
    set_learning_rate_,
)
from gramian.train.predict.evaluate import as_numbers, condition_numbers, evaluate_together
from gramian.train.predict.predictor import Predictor
from gramian.train.record.checkpoint import (
    FREE,
    CheckpointError,
    State,
    check_state,
    differences,
)
from gramian.train.record.files import in_one_line
from gramian.train.record.progress import ProgressView
from gramian.train.record.run_folder import Row, RunFolder, check_continuation, environment
from gramian.train.runtime.compiled import as_written
from gramian.train.runtime.engine import Engine
from gramian.train.runtime.memory import peak_bytes
from gramian.train.runtime.seeds import generator
from gramian.train.runtime.signals import Stopped, StopSignals
from gramian.train.runtime.threads import num_threads
from gramian.train.step import (
    Place,
    StepResult,
    add_step,
    added_up,
    batch_indices,
    check_finite,
    epoch_row,
    num_steps,
    step_objective,
)
from gramian.train.task import Task
from gramian.train.trial import choose_threads

log = logging.getLogger("gramian")
SETS = ("validation", "test")
MOST_REPEATS = 5  # of one error at one step, each time with other noise


class TrainingFailed(Explained, Exception):
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
        on_epoch: called with the metrics of each epoch.
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
        if config.calibrate != "none" and not predictor.class_names:
            raise ConfigError("calibrate is for classes, but the data have other targets")
        fitted, batch_size = predictor.config, min(config.batch_size, len(task.train))
        if isinstance(fitted, NetworkConfig) and batch_size == 1 and fitted.has_single_pixels:
            raise ConfigError(
                "batch_size must be 2 or more for a network whose last maps have one pixel: a "
                "single pixel has no variance"
            )
        self.predictor = predictor
        self.task = task
        self.config = config
        self.engine = engine
        self.on_epoch = on_epoch
        self.folder = folder
        self.writes = engine.is_first and folder is not None
        self.model = predictor.trainable.to(engine.dtype)
        self.batch_size = batch_size
        self.share = math.ceil(self.batch_size / (engine.world_size * config.accumulate))
        set_recomputed_(self.model, self.share, config, engine.device)
        self.steps_per_epoch = num_steps(len(task.train), self.batch_size)
        self.total_steps = self.steps_per_epoch * config.max_epochs
        self.quiet = quiet
        silent = quiet or not engine.is_first
        self.view = ProgressView(config.max_epochs, self.steps_per_epoch, silent)
        self.step = 0  # steps done
        self.attempt = 0  # rollbacks done
        self.num_errors = 0  # numerical errors met
        self.repeated = (0, "", 0)  # the last one's step, text, and how often it came in a row
        self.sums: dict[str, int | float] = {}  # of the epoch under way
        self.rows: list[Row] = []
        self.best: Best | None = None
        self.run = uuid.uuid4().hex[:12]  # names the run in all its files
        self.data_digest = task.digest() if folder is not None else None
        self.measured: dict[str, Metrics] = {}  # of the present model
        self.started = time.perf_counter()
        self.seconds_before = 0.0  # of earlier stretches, up to their last checkpoint
        self.in_folder = False  # whether the folder is this run's
        self.resumed = False
        self.last_saved: State | None = None  # for rollback only: as large as the model

    # ---- the loop ----

    def fit(self, resume: bool = True) -> list[Row]:
        """Train to the end; a row of metrics per epoch."""
        self.started = time.perf_counter()
        threads = num_threads(torch.get_num_threads())  # put back at the end
        with threads, self.engine.arithmetic(), self.engine.connected(), self.writing():
            with training(self.model), StopSignals() as stop:
                try:
                    self.engine.total([0.0])  # all wait until the first process has the folder
                    self.start(resume)
                    self.loop(stop)
                finally:
                    self.engine.tear_down(self.model)
            self.finish()
        return self.rows

    def writing(self) -> AbstractContextManager[None]:
        """Within this context no other program writes the run's folder."""
        return self.folder.locked() if self.folder is not None and self.writes else nullcontext()

    def loop(self, stop: StopSignals) -> None:
        """Step after step, with each epoch's metrics and with checkpoints between."""
        saved_at, unsaved = time.monotonic(), False
        with self.view:
            while True:
                overdue = time.monotonic() - saved_at > 60 * self.config.checkpoint_minutes
                received, overdue = self.agree(stop.received, overdue)
                if unsaved and (received or overdue):
                    self.save_checkpoint()
                    saved_at, unsaved = time.monotonic(), False
                if received:
                    self.engine.total([0.0])  # all wait until the checkpoint is written
                    raise Stopped(received)
                if not self.epoch_ended:
                    if self.step >= self.total_steps or self.is_over:
                        return
                    self.train_step()
                    unsaved = True
                if self.epoch_ended:
                    self.end_epoch()
                    saved_at, unsaved = time.monotonic(), False

    @property
    def epoch_ended(self) -> bool:
        """Whether all steps of an epoch are done, and its row of metrics is not."""
        return self.step % self.steps_per_epoch == 0 and bool(self.sums)

    @property
    def is_over(self) -> bool:
        """Whether patience is at its end."""
        return is_over(self.best, self.rows, self.config.patience)

    def agree(self, received: int | None, overdue: bool) -> tuple[int | None, bool]:
        """The signal that any process has received, and whether the first one's clock says so."""
        signals = (signal.SIGINT, signal.SIGTERM)
        mine = [float(received == number) for number in signals]
        *heard, late = self.engine.total([*mine, float(overdue and self.engine.is_first)])
        return next((s for s, h in zip(signals, heard, strict=True) if h), None), bool(late)

    def train_step(self) -> None:
        """One step on one batch."""
        started = time.perf_counter()
        lr = self.learning_rate(self.step)
        set_learning_rate_(self.optimiser, lr)
        self.measured = {}
        means = [mean.clone() for mean in self.model.running_statistics()]
        try:
            self.optimiser.zero_grad()  # first, so that old gradients take no memory
            with deferred_checks(self.engine.defers_checks):
                result = self.gradients()
            self.check_step(result)
        except NumericalError as error:
            for mean, before in zip(self.model.running_statistics(), means, strict=True):
                mean.copy_(before)
            self.numerical_error(error)
            if self.config.on_numerical_error == "skip":
                self.step += 1
            return
        self.optimiser.step()
        self.step += 1
        numbers = result.numbers()
        self.sums = add_step(self.sums, numbers, time.perf_counter() - started, self.engine)
        accuracy = numbers["correct"] / (numbers["count"] or 1)
        self.view.step(self.step, -numbers["objective"], accuracy, lr)

    def rehearse(self) -> None:
        """The work of a step, which moves nothing but running means."""
        self.gradients()

    def check_step(self, result: StepResult) -> None:
        """Raise if the step has no numbers; where checks were deferred, what they have to say."""
        try:
            check_finite(self.model, result.terms)
        except NonFiniteError:
            if self.engine.defers_checks:
                with as_written():
                    self.gradients()
            raise

    def gradients(self) -> StepResult:
        """The objective at the present step, and its gradients; an error in one is one in all."""
        place = Place(self.config.seed, self.step, self.attempt)
        indices = batch_indices(len(self.task.train), self.batch_size, place)
        parts = min(self.config.accumulate, max(1, len(indices) // 2))
        here = (self.forward, self.model, self.task, indices, place, self.engine)
        results = []
        for part in range(parts):
            with self.engine.accumulating(more=part + 1 < parts):
                work = partial(step_objective, *here, part, parts)
                results.append(self.engine.together(work))
                self.engine.backward(results[-1].terms.loss)
        return added_up(results)

    def learning_rate(self, step: int) -> float:
        """The learning rate at a step."""
        c = self.config
        factor = lr_factor(c.schedule, step, self.steps_per_epoch, c.max_epochs, c.milestones)
        return c.lr * factor

    # ---- metrics ----

    def end_epoch(self) -> None:
        """Make the epoch's row of metrics, write it with a checkpoint, and show it."""
        epoch = self.step // self.steps_per_epoch
        row: Row = {"epoch": epoch, "step": self.step, "lr": self.learning_rate(self.step - 1)}
        row |= epoch_row(self.sums, self.model.likelihood.targets == "classes")
        evaluation: Row = {}
        if epoch % self.config.evaluate_every == 0 or self.step == self.total_steps:
            try:
                evaluation = self.evaluate()
            except NumericalError as error:
                if self.config.on_numerical_error != "rollback":
                    self.save_checkpoint()  # the epoch's steps are good
                self.numerical_error(error)
                if self.config.on_numerical_error == "rollback":
                    return
        row |= {"memory_mb": peak_bytes() / 2**20, "numerical_errors": self.num_errors}
        self.sums = {}
        self.rows.append(row | evaluation)
        if self.config.patience is not None:
            self.best = best_of(self.best, self.rows[-1], self.model)
        self.save_checkpoint()
        self.view.epoch(self.rows[-1])
        if self.on_epoch is not None and self.engine.is_first:
            self.on_epoch(self.rows[-1])

    def evaluate(self) -> Row:
        """Metrics and condition numbers; the test set waits for the end if there is another one."""
        row: Row = {}
        early = self.task.validation is not None and self.step < self.total_steps
        for name, metrics in self.measure(("validation",) if early else SETS).items():
            row |= {f"{name}_{key}": value for key, value in as_numbers(metrics).items()}
        if self.config.conditions:
            numbers = condition_numbers(self.model)
            row |= {f"condition/{path}": value for path, value in numbers.items()}
        return row

    def measure(self, names: Sequence[str] = SETS) -> dict[str, Metrics]:
        """Metrics of the present model on the sets that there are, computed once."""
        sets = {"validation": self.task.validation, "test": self.task.test}
        for name in names:
            data = sets[name]
            if data is not None and name not in self.measured:
                self.measured[name] = evaluate_together(self.predictor, data, self.engine)
        return self.measured

    def finish(self) -> None:
        """Take the best model if patience chose one, make statistics exact, calibrate, and save."""
        if not self.in_folder:  # a continuation that had no step left
            self.save_checkpoint()
        if self.best is not None:
            self.model.load_state_dict(self.best["model"])
            self.measured = {}
        if self.config.estimate_statistics and self.model.running_statistics():
            self.measured = {}
            draw = generator(self.config.seed, "statistics")
            some = torch.randperm(len(self.task.train), generator=draw)[:10_000]
            # Augmented as in training: the layers have learned relative to that scale.
            self.model.estimate_statistics_(
                self.task.inputs(self.task.train.x[part], draw, self.engine.dtype).to(
                    self.engine.device
                )
                for part in some.tensor_split(math.ceil(len(some) / 256))
            )
        self.complete()
        held_out = self.task.validation
        if self.config.calibrate != "none" and held_out is not None:
            self.measured = {}
            self.predictor = self.predictor.calibrate(
                held_out.x, held_out.y, self.config.calibrate, sample_weight=held_out.weights
            )
        if self.engine.world_size > 1:
            self.measure()  # while the processes are together
        if self.folder is not None and self.writes:
            self.predictor.save_pretrained(self.folder.model, self.origin())

    def complete(self) -> None:
        """What a kind of training does at last to the model that is kept: nothing."""

    # ---- start, stop, trouble ----

    def start(self, resume: bool) -> None:
        """Give the model start values, or take up the newest checkpoint."""
        saved = self.folder.checkpoints.newest() if self.folder is not None and resume else None
        if saved is not None:
            self.check(saved)
        elif not self.model.initialised:
            draw = generator(self.config.seed, "start")
            x = self.task.inputs(self.task.train.x, draw, self.engine.dtype)
            self.model.initialise_(x, draw, weights=self.task.train.weights)
        self.model.to(self.engine.device)
        sharded = self.config.shard_optimiser and self.engine.world_size > 1
        optimiser = build_optimiser(self.model, self.config, sharded)
        self.forward, self.optimiser = self.engine.set_up(self.model, optimiser, self.share)
        if saved is not None:
            self.load_state(saved)
            self.resumed, self.run = True, saved.get("run", self.run)
            self.seconds_before = saved.get("seconds", 0.0)
            self.say_what_changes(saved["config"])
        if self.engine.total([self.step])[0] != self.step * self.engine.world_size:
            raise CheckpointError(
                f"the processes found different checkpoints, this one step {self.step}: all "
                "machines must share the run folder"
            )
        if self.config.on_numerical_error == "rollback":
            self.last_saved = copy.deepcopy(self.state())
        seconds = choose_threads(self, None if saved is None else saved.get("threads"))
        if not self.quiet:
            self._say(
                expectation(
                    self.task,
                    self.config,
                    self.model,
                    self.share,
                    self.total_steps,
                    seconds,
                    recorded=self.folder is not None,
                )
            )

    def check(self, saved: State) -> None:
        """Refuse a checkpoint that these settings and data cannot go on from."""
        check_state(saved)
        now = self.config.to_dict()
        check_continuation(saved["config"], now, saved.get("data"), self.data_digest)
        if saved["step"] > self.total_steps:
            done = saved["step"] / self.steps_per_epoch
            raise CheckpointError(
                f"the run has done {done:g} epochs already, more than max_epochs = "
                f"{self.config.max_epochs}. Give it more, or another --output or --name"
            )

    def say_what_changes(self, before: State) -> None:
        """Log where a continuation begins, and what is not as it was."""
        self._say("resuming at epoch %.2f", self.step / self.steps_per_epoch)
        now = self.config.to_dict()
        for change in differences(before, now, FREE):
            self._say("from here on %s", change)
        if self.config.schedule != "constant" and before["max_epochs"] != now["max_epochs"]:
            self._say(
                "the learning rate follows the schedule %s over %d epochs from here on",
                self.config.schedule,
                self.config.max_epochs,
            )

    def seconds(self) -> float:
        """Wall time of the run, over all its stretches."""
        return self.seconds_before + time.perf_counter() - self.started

    def origin(self) -> dict[str, str | None]:
        """What the run's files share: its name and the digest of its data."""
        return {"run": self.run, "data": self.data_digest}

    def facts(self) -> dict[str, Any]:
        """What the run's numbers depend on besides its settings, for env.json."""
        where = (self.config.seed, self.engine.device, self.engine.dtype)
        return self.origin() | environment(*where)

    def state(self) -> State:
        """All that the rest of the run depends on. Noise is a function of seed and step."""
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "attempt": self.attempt,
            "num_errors": self.num_errors,
            "sums": dict(self.sums),
            "rows": list(self.rows),
            "best": self.best,
            "config": self.config.to_dict(),
            "seconds": self.seconds(),
            "threads": torch.get_num_threads(),
            **self.origin(),
        }

    def load_state(self, state: State) -> None:
        """Go (back) to a state."""
        try:
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            reason = in_one_line(error)
            raise CheckpointError(f"the checkpoint is of another model: {reason}") from error
        self.step, self.attempt = state["step"], state["attempt"]
        self.num_errors = state["num_errors"]
        self.best = None if self.config.patience is None else state["best"]
        self.sums = dict(state["sums"])
        self.rows = list(state["rows"])
        self.measured = {}

    def save_checkpoint(self) -> None:
        """Keep the state for a rollback, and write it if the run has a folder."""
        state = self.state()
        if self.config.on_numerical_error == "rollback":
            self.last_saved = copy.deepcopy(state)
        if self.folder is not None and self.writes:
            self.write(self.folder, state)
        self.in_folder = True

    def write(self, folder: RunFolder, state: State) -> None:
        """A checkpoint, the run's settings with the first one, and its rows of metrics."""
        if self.in_folder or self.resumed:
            folder.checkpoints.save(self.step, state)
        if not self.in_folder:
            if self.resumed:
                folder.resume(self.config, self.facts())
            else:
                folder.begin(self.config, self.facts(), self.step, state)
        if self.rows:
            folder.write_metrics(self.rows)

    def numerical_error(self, error: NumericalError) -> None:
        """Count it; then raise, or restore the last checkpoint and continue with other noise."""
        self.num_errors += 1
        step = self.step if self.epoch_ended else self.step + 1
        policy = self.config.on_numerical_error
        times = self.repeated[2] + 1 if self.repeated[:2] == (step, str(error)) else 1
        self.repeated = (step, str(error), times)
        in_vain = policy == "rollback" and times == MOST_REPEATS
        if in_vain:
            error.remedy = (
                f"The same came {times} times, so other noise does not help: check the data of "
                f"this step, or leave it out (on_numerical_error skip). {error.remedy}"
            )
        failed = TrainingFailed(-(-step // self.steps_per_epoch), step, error)
        if policy == "raise" or in_vain or self.num_errors > self.config.max_numerical_errors:
            raise failed from error
        if self.engine.is_first:
            log.warning("%s: %s", "leaving it out" if policy == "skip" else "rolling back", failed)
        if policy == "rollback":
            assert self.last_saved is not None
            num_errors, attempt = self.num_errors, self.attempt + 1
            self.load_state(self.last_saved)
            self.num_errors, self.attempt = num_errors, attempt

    def _say(self, message: str, *values: object) -> None:
        if self.engine.is_first:
            log.info(message, *values)
