"""``gramian train``: from settings to a run folder."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jsonargparse import Namespace

from gramian.experiments.cli.terminal import as_json, show_figures
from gramian.experiments.cli.train_options import as_file, parse_train
from gramian.train.config import ConfigError, TrainConfig
from gramian.train.record.run_folder import Row, RunFolder
from gramian.train.run import prepare, run_to_end
from gramian.train.trainer import Trainer

log = logging.getLogger("gramian")


def run(words: Sequence[str]) -> None:
    """Train, evaluate, save, and say where everything is."""
    config, options = parse_train(words)
    if options.print_config:
        sys.stdout.write(as_file(options))
        return
    folder = run_folder(config, options)
    on_epoch = tensorboard_writer(folder) if options.tensorboard and not options.dry_run else None
    trainer = prepare(config, folder, options.quiet, on_epoch)
    resume = options.resume != "never"
    if options.dry_run:
        trainer.start(resume)
        return
    summary = run_to_end(trainer, folder, resume)
    if summary is None:
        return
    if options.plots:
        draw_plots(trainer, folder)
    if options.json:
        sys.stdout.write(as_json({"folder": str(folder.path), **summary}))
    else:
        show_figures(f"{config.data}, seed {config.seed}", summary["figures"])
        sys.stdout.write(f"\nrun folder: {folder.path}\n")


def run_folder(config: TrainConfig, options: Namespace) -> RunFolder:
    """The folder of the run; ``--resume never`` refuses one that is in use."""
    if options.resume not in ("auto", "never"):
        folder = RunFolder(options.resume)
        if not folder.checkpoints.paths():
            raise ConfigError(f"--resume {options.resume}: there is no run with checkpoints")
        return folder
    data = Path(config.data).stem
    name = options.name or f"{data}-{config.kind}-seed{config.seed}"
    folder = RunFolder(Path(options.output) / name)
    if options.resume == "never" and folder.checkpoints.paths():
        for path in folder.checkpoints.paths():
            path.unlink()
    return folder


def tensorboard_writer(folder: RunFolder) -> Callable[[Row], None]:
    """A function that writes an epoch's figures as TensorBoard events."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("--tensorboard needs: pip install 'gramian[log]'") from None
    writer = SummaryWriter(folder.path / "tensorboard")

    def write(row: Row) -> None:
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
    for path in save_run_plots(trainer.predictor, trainer.task.test, trainer.rows, folder.plots):
        log.info("plot: %s", path)
