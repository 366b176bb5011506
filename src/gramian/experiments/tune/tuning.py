"""The search: trials in a database, each a run that resumes, pruned by its validation.

Everything is in one folder: ``study.db`` (all trials), ``trials/`` (a run folder for each set of
values), ``best.yaml`` (for ``gramian train --config``), ``trials.csv`` and ``tune.png``.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import yaml
from filelock import FileLock, Timeout
from optuna.trial import FrozenTrial, TrialState

from gramian.experiments.escapes import csv_cell
from gramian.experiments.pool import run_jobs
from gramian.experiments.tune.search_space import Dimension, value_of
from gramian.gram.errors import NumericalError
from gramian.train.config import ConfigError, TrainConfig
from gramian.train.predict.evaluate import as_numbers
from gramian.train.record.files import write_text_atomically
from gramian.train.record.run_folder import FolderInUse, Row, RunFolder
from gramian.train.run import prepare
from gramian.train.run_settings import changed
from gramian.train.runtime.signals import Stopped, StopSignals
from gramian.train.task import load_task
from gramian.train.trainer import TrainingFailed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STUDY = "study.db"
METRIC = "validation_log_likelihood"
HELD_OUT = 0.25  # of the training set, if nobody has said
LOOKS = 8  # evaluations of a trial, at which it may be given up
KILLED = "killed"
ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
FAILURES = (TrainingFailed, NumericalError, ConfigError, ValueError)
log = logging.getLogger("gramian")


class Tuning:
    """A search in a folder.

    The first trial has the settings as they are, so that the best is never worse.

    Args:
        folder: where everything is.
        config: the settings that are not searched, and the first trial's.
        space: what is searched.
        modules: of what the settings name by a path, which every process has to import.
    """

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        space: Sequence[Dimension],
        modules: Sequence[str] = (),
    ) -> None:
        self.folder, self.config, self.space = folder, config, tuple(space)
        self.modules = tuple(modules)

    @property
    def trial_config(self) -> TrainConfig:
        """The settings with what a trial needs: a validation set, and looks at it on the way."""
        config = self.config
        return replace(
            config,
            validation_fraction=config.validation_fraction or HELD_OUT,
            evaluate_every=min(config.evaluate_every, max(1, config.max_epochs // LOOKS)),
            conditions=False,
        )

    # ---- the database ----

    def study(self, worker: int = 0) -> optuna.Study:
        """The trials so far, as one of several processes sees them."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{self.folder.resolve() / STUDY}",
            engine_kwargs={"connect_args": {"timeout": 60}},
        )
        study = optuna.create_study(
            storage=storage,
            study_name="gramian",
            direction="maximize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
        )
        # A search that goes on must not draw again what it drew before.
        seed = 10_000 * self.config.seed + 100 * len(study.get_trials(deepcopy=False)) + worker
        study.sampler = optuna.samplers.TPESampler(
            n_startup_trials=6, constant_liar=True, seed=seed
        )
        return study

    def begin(self) -> optuna.Study:
        """Open or make the study. What a killed process was at is taken up again.

        Raises:
            ConfigError: the folder holds a search of other settings.
        """
        study = self.study()
        mine = {"space": [str(each) for each in self.space], "settings": self._settings()}
        before = study.user_attrs.get("search")
        if before is None:
            study.set_user_attr("search", mine)
            study.enqueue_trial(self._start())
        elif before != json.loads(json.dumps(mine)):
            raise ConfigError(
                f"{self.folder} holds a search of other settings: give another --output"
            )
        for trial in study.get_trials(states=(TrialState.RUNNING,)):
            optuna.Trial(study, trial._trial_id).set_user_attr(KILLED, True)
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params)
            log.info("trial %d was killed: its values are taken up again", trial.number)
        return study

    def _settings(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(json.dumps(self.config.to_dict()))
        return values

    def _start(self) -> dict[str, Any]:
        """The settings as they are, as far as they lie in the space."""
        values = {each.name: each.stored(value_of(self.config, each.name)) for each in self.space}
        return {name: value for name, value in values.items() if value is not None}

    # ---- trials ----

    def run(self, num_trials: int, jobs: int) -> None:
        """Work until so many trials have ended, over all calls; one search at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        found = {path.name for path in self.folder.iterdir()}
        if found - {".lock", ".next"} and STUDY not in found:
            raise ConfigError(
                f"{self.folder} is not empty and holds no search: give another --output"
            )
        try:
            with FileLock(self.folder / ".lock", timeout=0):
                self.begin()
                workers = {f"worker {n}": partial(work, self, num_trials, n) for n in range(jobs)}
                for _ in run_jobs(workers, jobs):
                    pass
        except Timeout:
            raise FolderInUse(f"{self.folder} is in use by another search") from None

    def objective(self, trial: optuna.Trial, signals: StopSignals) -> float:
        """Train with the values of a trial; its validation log-likelihood."""
        values = {each.name: each.suggest(trial) for each in self.space}
        config = changed(self.trial_config, values)
        name = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
        folder = RunFolder(self.folder / "trials" / name)
        trial.set_user_attr("folder", str(folder.path.relative_to(self.folder)))
        task = replace(load_task(config), test=None)  # nothing is chosen by it
        with waiting_lock(self.folder / f".{name}.lock", signals):
            trainer = prepare(config, folder, True, reporter(trial, signals), task)
            trainer.fit(resume=True)
            metrics = as_numbers(trainer.measure()["validation"])
        trial.set_user_attr("metrics", {k: v for k, v in metrics.items() if v == v})
        log.info("trial %d: %.4f (%s)", trial.number, metrics["log_likelihood"], in_words(values))
        return metrics["log_likelihood"]

    def next_trial(self, study: optuna.Study, num_trials: int) -> optuna.Trial | None:
        """A trial to work on; None if enough have ended or are under way."""
        with FileLock(self.folder / ".next"):
            counted = [
                trial
                for trial in study.get_trials(states=(*ENDED, TrialState.RUNNING))
                if KILLED not in trial.user_attrs
            ]
            return None if len(counted) >= num_trials else study.ask()

    # ---- results ----

    def write(self) -> None:
        """The files of the results."""
        from gramian.experiments.plots.style import save

        rows = self.rows()
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(csv_cell, rows[0]))
        writer.writerows(map(csv_cell, row.values()) for row in rows)
        write_text_atomically(self.folder / "trials.csv", text.getvalue())
        best = self.best()
        if best is not None:
            config = self.settings_of(best)
            head = f"# trial {best.number} of {self.folder.name}: {METRIC} {best.value:.5f}\n"
            body = yaml.safe_dump(config.to_dict(), sort_keys=False)
            write_text_atomically(self.folder / "best.yaml", head + body)
            save(tuning_figure(self), self.folder / "tune.png")

    def rows(self) -> list[dict[str, Any]]:
        """A row for each trial that has ended, the best first."""
        trials = [t for t in self.study().get_trials(states=ENDED) if KILLED not in t.user_attrs]
        trials.sort(key=lambda trial: (-score(trial), trial.number))
        return [
            {
                "trial": trial.number,
                "state": trial.state.name.lower(),
                "log_likelihood": None if score(trial) == -math.inf else score(trial),
                "accuracy": trial.user_attrs.get("metrics", {}).get("accuracy"),
                **{each.name: trial.params.get(each.name) for each in self.space},
                "folder": trial.user_attrs.get("folder"),
            }
            for trial in trials
        ]

    def best(self) -> FrozenTrial | None:
        """The trial with the best validation log-likelihood; None if none has ended well."""
        done = self.study().get_trials(states=(TrialState.COMPLETE,))
        return max(done, key=score, default=None)

    def settings_of(self, trial: FrozenTrial) -> TrainConfig:
        """The settings of a trial, without what only the search needs."""
        fixed = optuna.trial.FixedTrial(trial.params)
        values = {each.name: each.suggest(fixed) for each in self.space}  # type: ignore[arg-type]
        return changed(self.config, values)


def work(tuning: Tuning, num_trials: int, number: int) -> None:
    """One process: trial after trial, until there are enough."""
    if not log.handlers:  # a process of its own
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
    for name in tuning.modules:
        importlib.import_module(name)
    study = tuning.study(number)
    with StopSignals() as signals:  # also between two runs, where nobody else listens
        while (trial := tuning.next_trial(study, num_trials)) is not None:
            try:
                study.tell(trial, tuning.objective(trial, signals))
            except optuna.TrialPruned:
                study.tell(trial, state=TrialState.PRUNED)
            except FAILURES as error:
                study.tell(trial, state=TrialState.FAIL)
                log.info("trial %d failed: %s", trial.number, error)
            stop_if_told(signals)


def reporter(trial: optuna.Trial, signals: StopSignals) -> Callable[[Row], None]:
    """Tell the study of each evaluation, and stop a trial that is behind the others."""

    def report(row: Row) -> None:
        stop_if_told(signals)
        if METRIC in row:
            trial.report(float(row[METRIC]), int(row["epoch"]))
            if trial.should_prune():
                log.info("trial %d: behind the others after epoch %d", trial.number, row["epoch"])
                raise optuna.TrialPruned

    return report


@contextmanager
def waiting_lock(path: Path, signals: StopSignals) -> Iterator[None]:
    """Wait while another process has a trial of the same values: its result is ours then."""
    lock = FileLock(path)
    while not lock.is_locked:
        stop_if_told(signals)
        with suppress(Timeout):
            lock.acquire(timeout=0.5)
    try:
        yield
    finally:
        lock.release()


def stop_if_told(signals: StopSignals) -> None:
    """Raise if a signal came while no run was listening."""
    if signals.received is not None:
        raise Stopped(signals.received)


def score(trial: FrozenTrial) -> float:
    """The validation log-likelihood of a trial that has come to its end; −∞ of others."""
    done = trial.state == TrialState.COMPLETE and trial.value is not None
    return float(trial.value) if done and trial.value is not None else -math.inf


def in_words(values: dict[str, Any]) -> str:
    """Values of a trial in one line."""
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


def tuning_figure(tuning: Tuning) -> Figure:
    """Every trial: in its order, and by the value of each setting; those given up as strokes."""
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    from gramian.experiments.plots.style import set_title

    rows = sorted(tuning.rows(), key=lambda row: row["trial"])
    done = [row for row in rows if row["log_likelihood"] is not None]
    given_up = [row for row in rows if row["log_likelihood"] is None]
    heights = np.array([row["log_likelihood"] for row in done])
    panels = 1 + len(tuning.space)
    columns = min(3, panels)
    figure = Figure(figsize=(4 * columns, 3 * -(-panels // columns)), layout="constrained")
    axes = figure.subplots(-(-panels // columns), columns, squeeze=False).flatten()
    axes[0].plot([row["trial"] for row in done], heights, "o")
    axes[0].step([row["trial"] for row in done], np.maximum.accumulate(heights), where="post")
    axes[0].set(xlabel="trial", ylabel="validation log-likelihood")
    for panel, each in zip(axes[1:], tuning.space, strict=False):
        values = [row[each.name] for row in done]
        panel.plot([str(v) for v in values] if each.choices else values, heights, "o")
        panel.set(xlabel=each.name)
        if each.log:
            panel.set_xscale("log")
            panel.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            panel.xaxis.set_minor_formatter(NullFormatter())
        if not each.choices:
            strokes = [row[each.name] for row in given_up if row[each.name] is not None]
            bottom = {"transform": panel.get_xaxis_transform(), "color": "0.6"}
            panel.plot(strokes, [0.02] * len(strokes), "|", **bottom)
    for panel in axes[panels:]:
        panel.set_axis_off()
    lowest = np.quantile(heights, 0.1)
    for panel in axes[:panels]:
        panel.set_ylim(lowest - 0.1 * (heights.max() - lowest) - 1e-9, None)
    title = (
        f"{tuning.folder.name}: {len(done)} trials to their end, {len(given_up)} given up (strokes)"
    )
    set_title(figure, title)
    return figure
