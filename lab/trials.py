"""Trials on a validation set: how the recipes of the presets were found.

`python -m lab.trials trials.txt --output results/trials.jsonl`, where a line of trials.txt is
a name, a colon and the options of `gramian train`. Each worker takes the next line that nobody has
taken, trains, measures on the validation set (the test set is never looked at), and adds a line of
JSON to the output. A killed trial resumes; start as many workers as there are cores.
"""

import argparse
import json
import os
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gramian.experiments.cli.train_options import parse_train
from gramian.train.predict.evaluate import as_numbers
from gramian.train.record.run_folder import RunFolder, commit
from gramian.train.run import prepare
from gramian.train.task import load_task
from gramian.train.trainer import TrainingFailed


def run(name: str, options: str, folder: Path) -> dict[str, Any]:
    """One trial: its validation metrics, and what it cost."""
    config, _, splits = parse_train(shlex.split(options))
    task = replace(load_task(config, splits), test=None)
    started = time.process_time()
    trainer = prepare(config, RunFolder(folder), quiet=True, task=task)
    row: dict[str, Any] = {"name": name, "options": options}
    try:
        rows = trainer.fit(resume=True)
    except TrainingFailed as failed:
        return {**row, "failed": str(failed)}
    metrics = as_numbers(trainer.measure()["validation"])
    return {
        **row,
        "accuracy": metrics["accuracy"],
        "log_likelihood": metrics["log_likelihood"],
        "ece": metrics["ece"],
        "train_accuracy": rows[-1].get("train_accuracy"),
        "processor_seconds": round(time.process_time() - started),
        "commit": commit(Path(__file__)),
    }


def take(lines: list[str], folder: Path) -> tuple[str, str, Path] | None:
    """The next trial that no living process has taken."""
    for line in lines:
        name, _, options = (part.strip() for part in line.partition(":"))
        if not options or name.startswith("#") or (folder / name / "done").exists():
            continue
        (folder / name).mkdir(parents=True, exist_ok=True)
        claim = folder / name / "taken_by"
        if claim.exists() and Path(f"/proc/{claim.read_text()}").exists():
            continue
        claim.write_text(str(os.getpid()))
        return name, options, folder / name
    return None


def main() -> None:
    """Work until there is nothing left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trials", type=Path)
    parser.add_argument("--output", type=Path, default=Path("results/trials.jsonl"))
    parser.add_argument("--folder", type=Path, default=Path("runs/trials"))
    parser.add_argument("--wait", action="store_true", help="wait for new lines at the end")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    while True:
        taken = take(arguments.trials.read_text().splitlines(), arguments.folder)
        if taken is None:
            if not arguments.wait:
                return
            time.sleep(5)
            continue
        name, options, folder = taken
        row = run(name, options, folder / "run")
        with arguments.output.open("a") as file:
            file.write(json.dumps(row) + "\n")
        (folder / "done").touch()
        print(row, flush=True)


if __name__ == "__main__":
    main()
