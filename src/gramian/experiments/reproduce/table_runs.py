"""Run what a plan has left to do: one after the other, or several processes at a time."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from gramian.experiments.reproduce.plan import ENDS, Plan, PlannedRun
from gramian.train.record.checkpoint import FREE, check_same_settings, differences
from gramian.train.record.files import write_text_atomically
from gramian.train.run import prepare, run_to_end
from gramian.train.runtime.signals import Stopped, StopSignals
from gramian.train.trainer import TrainingFailed

log = logging.getLogger("gramian")


class RunsCrashed(Exception):
    """Processes ended without a result and without a numerical failure."""

    exit_code = 1


def run_here(plan: Plan, quiet: bool) -> None:
    """All runs that are left, in this process. A run that fails numerically is a result."""
    plan.write()
    for planned in left_to_do(plan):
        log.info("%s: %s", plan.table.name, planned.name)
        run_one(planned, quiet)


def left_to_do(plan: Plan) -> Iterator[PlannedRun]:
    """The runs that have no result yet, here or in another table."""
    for planned in plan.runs():
        if planned.is_over:
            check_settings(planned)
        elif not copy_from_twin(planned, plan.output):
            yield planned


def run_one(planned: PlannedRun, quiet: bool) -> None:
    """One run to its end or to its failure, from where it was."""
    folder = planned.folder
    trainer = prepare(planned.config, folder, quiet)
    try:
        run_to_end(trainer, folder)
    except TrainingFailed as failed:
        log.warning("%s stopped: %s", planned.name, failed)
        facts = {
            "epoch": failed.epoch,
            "step": failed.step,
            "layer": failed.layer,
            "reason": failed.reason,
        }
        text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
        folder.describe(planned.config, trainer.facts())  # not there yet in the first epoch
        write_text_atomically(folder.path / "failure.json", text)
    shutil.rmtree(folder.checkpoints.folder, ignore_errors=True)  # no use any more, and large


def check_settings(planned: PlannedRun) -> None:
    """Refuse to take a finished run of other settings for one of these."""
    before = yaml.safe_load((planned.folder.path / "config.yaml").read_text())
    check_same_settings(before, planned.config.to_dict(), FREE)


def copy_from_twin(planned: PlannedRun, output: Path) -> bool:
    """Take over a run of the same settings that another table has finished, if there is one."""
    wanted = planned.config.to_dict()
    for path in sorted(output.glob(f"*/*/seed{planned.config.seed}/config.yaml")):
        folder = path.parent
        if folder == planned.folder.path or not any((folder / name).exists() for name in ENDS):
            continue
        if not differences(yaml.safe_load(path.read_text()), wanted, FREE):
            log.info("%s: as in %s", planned.name, folder)
            here = planned.folder.path
            shutil.copytree(folder, here, ignore=lambda *_: ENDS, dirs_exist_ok=True)
            for name in ENDS:  # last: they say that all is there
                if (folder / name).exists():
                    write_text_atomically(here / name, (folder / name).read_text())
            return True
    return False


def run_in_processes(plan: Plan, jobs: int, command: Sequence[str]) -> None:
    """``jobs`` processes at a time, each with its share of the cores.

    Args:
        plan: what to run.
        jobs: how many processes.
        command: words of ``gramian`` that run the plan; row and seed are added.

    A signal goes to all processes: each writes a checkpoint before it stops.
    """
    plan.write()
    waiting = list(left_to_do(plan))
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    running: dict[str, subprocess.Popen[bytes]] = {}
    crashed: list[str] = []
    with StopSignals() as stop:
        while waiting or running:
            while waiting and len(running) < jobs and stop.received is None:
                planned = waiting.pop(0)
                log.info("%s: %s", plan.table.name, planned.name)
                row, seed = planned.row.key, str(planned.config.seed)
                place = ["--only", row, "--seed", seed, "--jobs", "1", "--quiet"]
                words = [sys.executable, "-m", "gramian", *command, *place]
                running[planned.name] = subprocess.Popen(
                    words, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
                )
            time.sleep(0.2)
            if stop.received is not None:
                for process in running.values():
                    process.send_signal(signal.SIGTERM)
                for process in running.values():
                    process.wait()
                raise Stopped(stop.received)
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    if process.returncode != 0:
                        crashed.append(f"{name} (exit code {process.returncode})")
    if crashed:
        raise RunsCrashed(f"without a result: {', '.join(crashed)}. The same command tries again")
