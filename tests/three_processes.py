"""A script that trains in three processes which meet errors and signals one by one.

``python three_processes.py FOLDER`` writes what each process has seen to FOLDER/seen.pt.
"""

import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from gramian import NegativeVarianceError
from gramian.gram.fast import split
from gramian.train.record.run_folder import RunFolder
from gramian.train.runtime.engine import Engine
from gramian.train.runtime.signals import Stopped
from gramian.train.trainer import Trainer, TrainingFailed
from tests.train.tiny import config, trainer, weights

SETTINGS = {
    "max_epochs": 2,
    "batch_size": 19,  # 40 = 2 · 19 + 2, fewer than three
    "precision": "64-true",
    "optimiser": "muon",
}


def main(folder: Path) -> None:
    engine = Engine("cpu", devices=3, precision="64-true")

    def new(where: Path | None = None, **changes) -> Trainer:
        record = None if where is None else RunFolder(where)
        return trainer(config(**SETTINGS | changes), record, engine=engine)

    seen = {}
    run = new()
    seen["rows"], seen["weights"] = run.fit(), weights(run)

    split.WORTH_SHARING = 3
    engine.splits_chain = True
    run = new()
    run.fit()
    seen["split"] = weights(run)
    run = new(recompute_activations=True)
    run.fit()
    seen["split, recomputed"] = weights(run)
    engine.splits_chain = False

    run = new()
    fail_in_a_layer(run, process=1, at=2)
    try:
        run.fit()
    except TrainingFailed as failed:
        seen["raise"] = str(failed)

    run = new(on_numerical_error="skip")
    fail_in_a_layer(run, process=2, at=2)
    run.fit()
    seen["skip"] = (run.num_errors, weights(run))

    run = new(folder / "run")
    stop_at(run, process=2, step=5)
    try:
        run.fit()
    except Stopped as stopped:
        seen["stop"] = (run.step, stopped.exit_code)
    run = new(folder / "run")
    seen["resumed rows"], seen["resumed"] = run.fit(), weights(run)

    gathered = [None] * 3
    dist.all_gather_object(gathered, seen)
    if engine.is_first:
        torch.save(gathered, folder / "seen.pt")


def fail_in_a_layer(run: Trainer, process: int, at: int) -> None:
    """Let a variance in the middle of the model be negative, at one step of one process."""
    layer = run.model.layers["stage1_block1"].layer1.gram
    check = layer.variance_check

    def failing(variance):
        if run.engine.rank == process and run.step == at and run.model.training:
            raise NegativeVarianceError(1, variance.numel(), -1.0, check.threshold)
        return check(variance)

    failing.clamp = check.clamp
    layer.variance_check = failing


def stop_at(run: Trainer, process: int, step: int) -> None:
    train_step = run.train_step

    def and_stop():
        train_step()
        if run.engine.rank == process and run.step == step:
            signal.raise_signal(signal.SIGTERM)

    run.train_step = and_stop


if __name__ == "__main__":
    main(Path(sys.argv[1]))
