"""``gramian train``: from settings to a run folder."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from gramian.experiments.options import train_config, train_parser
from gramian.experiments.tables import show_figures
from gramian.train.config import ConfigError, TrainConfig, build_model
from gramian.train.engine import Engine
from gramian.train.evaluate import evaluate, figures
from gramian.train.files import write_text_atomically
from gramian.train.predictor import Predictor
from gramian.train.run_folder import Row, RunFolder, environment, peak_memory_mb
from gramian.train.task import Task, fit_model_config, load_task
from gramian.train.trainer import Trainer

log = logging.getLogger("gramian")


def run(words: Sequence[str]) -> None:
    """Train, evaluate, save, and say where everything is."""
    parser = train_parser(words)
    options = parser.parse_args(list(words))
    config = train_config(parser, options)
    folder = run_folder(config, options)
    task = load_task(config)
    engine = Engine(config.device, config.devices, config.num_nodes, config.precision)
    predictor = build_predictor(config, task)
    on_epoch = tensorboard_writer(folder) if options.tensorboard and not options.dry_run else None
    trainer = Trainer(predictor, task, config, engine, folder, options.quiet, on_epoch)
    if options.dry_run:
        trainer.start(resume=options.resume != "never")
        return
    if engine.is_first:
        folder.start(config, environment(config.seed, engine.device, engine.dtype))
    started = time.perf_counter()
    rows = trainer.fit(resume=options.resume != "never")
    if not engine.is_first:
        return
    summary = summarise(trainer, rows, time.perf_counter() - started)
    write_text_atomically(folder.path / "result.json", json.dumps(summary, indent=2) + "\n")
    if options.plots:
        draw_plots(trainer, folder)
    if options.json:
        sys.stdout.write(json.dumps({"folder": str(folder.path), **summary}) + "\n")
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


def build_predictor(config: TrainConfig, task: Task) -> Predictor:
    """An untrained model that fits the data."""
    model_config = fit_model_config(config.model, task.train)
    scale = ((0.0,), (1.0,))
    if not task.train.class_names:
        y = task.train.y.double()
        scale = (tuple(y.mean(0).tolist()), tuple(y.std(0).tolist()))
    model = build_model(model_config)
    return Predictor(model, model_config, task.scaler, task.train.class_names, scale)


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


def summarise(trainer: Trainer, rows: list[Row], seconds: float) -> dict[str, Any]:
    """Final figures of the saved model: none of them chose anything."""
    task = trainer.task
    sets = {"validation": task.validation, "test": task.test}
    return {
        "figures": {
            name: figures(evaluate(trainer.predictor, data))
            for name, data in sets.items()
            if data is not None
        },
        "epochs": int(rows[-1]["epoch"]) if rows else 0,
        "seconds": seconds,
        "train_seconds": sum(row["seconds"] for row in rows),
        "memory_mb": peak_memory_mb(),
        "numerical_errors": trainer.num_errors,
    }


def draw_plots(trainer: Trainer, folder: RunFolder) -> None:
    """Plots that a person looks at after a run."""
    try:
        from gramian.experiments.run_plots import save_run_plots
    except ImportError as error:
        log.info("no plots: %s", error)
        return
    for path in save_run_plots(trainer.predictor, trainer.task.test, trainer.rows, folder.plots):
        log.info("plot: %s", path)
