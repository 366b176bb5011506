"""``gramian train``: from settings to a run folder."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from jsonargparse import Namespace

from gramian.experiments.cli.terminal import as_json, show_metrics
from gramian.experiments.cli.train_options import as_file, parse_train
from gramian.experiments.escapes import say
from gramian.explained import MissingExtraError
from gramian.train.config import ConfigError, TrainConfig
from gramian.train.record.run_folder import Row, RunFolder
from gramian.train.run import Summary, prepare, run_to_end
from gramian.train.runtime.processes import is_first_process, is_lost_connection
from gramian.train.task import Task, load_task
from gramian.train.trainer import Trainer

log = logging.getLogger("gramian")


def run(words: Sequence[str]) -> None:
    """Train, evaluate, save, and say where everything is."""
    config, options, splits = parse_train(words)
    if options.print_config:
        sys.stdout.write(as_file(options))
        return
    folder = run_folder(config, options)
    task, resume = load_task(config, splits), options.resume != "never"
    first = is_first_process(config.devices * config.num_nodes)
    with only_first_speaks(first):
        if options.dry_run:
            folder.check()
            prepare(config, folder, options.quiet, task=task).start(resume)
            return
        with folder.locked() if first else nullcontext():
            summary = folder.result(config, task.digest()) if resume else None
            if summary is not None and first:
                log.info("%s is finished; --resume never would train it again", folder.path)
            elif summary is None:
                summary = train(config, folder, options, task, resume)
    if summary is None or not first:
        return
    if options.json:
        sys.stdout.write(as_json({"folder": str(folder.path), **summary}))
    else:
        show_metrics(f"{config.data}, seed {config.seed}", summary["metrics"])
        say(f"\nrun folder: {folder.path}\n")


def train(
    config: TrainConfig, folder: RunFolder, options: Namespace, task: Task, resume: bool
) -> Summary | None:
    """Train to the end and draw plots; None in all processes but the first."""
    on_epoch = tensorboard_writer(folder) if options.tensorboard else None
    trainer = prepare(config, folder, options.quiet, on_epoch, task)
    at_end = partial(draw_plots, trainer, folder) if options.plots else None
    return run_to_end(trainer, folder, resume, at_end)


@contextmanager
def only_first_speaks(first: bool) -> Iterator[None]:
    """What all processes of a run meet, such as a signal, is said by the first one only."""
    try:
        yield
    except BaseException as error:
        code = 1 if is_lost_connection(error) else getattr(error, "exit_code", None)
        if first or code is None:
            raise
        raise SystemExit(code) from error


def run_folder(config: TrainConfig, options: Namespace) -> RunFolder:
    """The folder of the run."""
    if options.resume not in ("auto", "never"):
        folder = RunFolder(options.resume)
        if not folder.checkpoints.paths():
            raise ConfigError(f"--resume {options.resume}: there is no run with checkpoints")
        return folder
    data = Path(config.data).stem
    name = options.name or f"{data}-{config.kind}-seed{config.seed}"
    return RunFolder(Path(options.output) / name)


def tensorboard_writer(folder: RunFolder) -> Callable[[Row], None]:
    """A function that writes an epoch's metrics as TensorBoard events."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError("--tensorboard", "log") from None
    writer: SummaryWriter | None = None

    def write(row: Row) -> None:
        nonlocal writer
        writer = writer or SummaryWriter(folder.path / "tensorboard")  # the run has its folder now
        for name, value in row.items():
            writer.add_scalar(name, value, int(row["epoch"]))
        writer.flush()

    return write


def draw_plots(trainer: Trainer, folder: RunFolder) -> None:
    """Plots that a person looks at after a run."""
    try:
        from gramian.experiments.plots.run_plots import save_run_plots
    except ImportError as error:
        log.info("no plots: %s", error)
        return
    measured = trainer.measure().get("test")
    for path in save_run_plots(
        trainer.predictor, trainer.task.test, trainer.rows, folder.plots, measured
    ):
        log.info("plot: %s", path)
