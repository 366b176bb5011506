"""One training run from its settings to its result, for ``gramian train`` and the paper alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gramian.gram.errors import NumericalError
from gramian.train.config import TrainConfig
from gramian.train.natural import NaturalTrainer
from gramian.train.predict.evaluate import as_numbers
from gramian.train.record.run_folder import Row, RunFolder
from gramian.train.runtime.engine import Engine
from gramian.train.runtime.memory import peak_bytes
from gramian.train.task import Task, load_task, untrained
from gramian.train.trainer import Trainer, TrainingFailed

Summary = dict[str, Any]


def prepare(
    config: TrainConfig,
    folder: RunFolder,
    quiet: bool = False,
    on_epoch: Callable[[Row], object] | None = None,
    task: Task | None = None,
) -> Trainer:
    """Data (unless ``task`` has them), engine and an untrained model."""
    task = task or load_task(config)
    engine = Engine.from_config(config, owns_process=True)
    predictor = untrained(config.model, task.train, task.scaler, dtype=engine.dtype)
    trainer = NaturalTrainer if config.natural else Trainer
    return trainer(predictor, task, config, engine, folder, quiet, on_epoch)


def run_to_end(
    trainer: Trainer,
    folder: RunFolder,
    resume: bool = True,
    at_end: Callable[[], object] | None = None,
) -> Summary | None:
    """Train, evaluate, and write result.json; None in all processes but the first.

    ``at_end`` writes other files of a run that is over: result.json is the last.

    A numerical error in an evaluation is a failure of the run as well.
    """
    with trainer.writing():
        try:
            rows = trainer.fit(resume)
            if not trainer.engine.is_first:
                return None
            summary = summarise(trainer, rows)
        except NumericalError as error:
            epoch = -(-trainer.step // trainer.steps_per_epoch)
            raise TrainingFailed(epoch, trainer.step, error) from error
        if at_end is not None:
            at_end()
        folder.write_result(summary)
    return summary


def summarise(trainer: Trainer, rows: list[Row]) -> Summary:
    """Final metrics of the saved model: none of them chose anything."""
    return {
        **trainer.origin(),
        "metrics": {name: as_numbers(metrics) for name, metrics in trainer.measure().items()},
        "epochs": int(rows[-1]["epoch"]) if rows else 0,
        "seconds": trainer.seconds(),
        "train_seconds": sum(row["seconds"] for row in rows),
        "memory_mb": peak_bytes() / 2**20,
        "numerical_errors": trainer.num_errors,
    }
