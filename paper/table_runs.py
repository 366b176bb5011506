"""Run what a plan has left to do: one after the other, or several processes at a time."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import yaml

from gramian.experiments.pool import run_jobs
from gramian.train.record.checkpoint import FREE, check_same_settings, differences
from gramian.train.record.files import write_json_atomically, write_text_atomically
from gramian.train.record.run_folder import FolderInUse
from gramian.train.run import prepare, run_to_end
from gramian.train.trainer import TrainingFailed
from paper.plan import ENDS, Plan, PlannedRun

log = logging.getLogger("gramian")


def run_plans(plans: Sequence[Plan], jobs: int = 1, quiet: bool = False) -> None:
    """Several plans seed by seed, so that what is there can be compared; one as it is."""
    if len(plans) == 1:
        run_plan(plans[0], jobs, quiet)
        return
    for seed in plans[0].each_seed:
        for plan in plans:
            run_plan(replace(plan, seed=seed), jobs, quiet)


def run_plan(plan: Plan, jobs: int = 1, quiet: bool = False) -> None:
    """All runs that are left, ``jobs`` at a time. A run that fails numerically is a result."""
    plan.write()
    left = {
        planned.name: partial(run_one, planned, quiet or jobs > 1) for planned in left_to_do(plan)
    }
    for line in run_jobs(left, jobs):
        log.info("%s: %s", plan.folder.name, line)


def left_to_do(plan: Plan) -> Iterator[PlannedRun]:
    """The runs that have no result yet, here or in another table."""
    for planned in plan.runs():
        if planned.is_over:
            check_settings(planned)
        elif not copy_from_twin(planned, plan.output):
            yield planned


def run_one(planned: PlannedRun, quiet: bool) -> str:
    """One run to its end or to its failure, from where it was; returns a line on it.

    Another program may be at it, or have ended it since this one looked.
    """
    try:
        with planned.folder.locked():
            if planned.is_over:
                check_settings(planned)
                return f"{planned.name}: done by another program"
            return _to_its_end(planned, quiet)
    except FolderInUse:
        return f"{planned.name}: another program is at it"


def _to_its_end(planned: PlannedRun, quiet: bool) -> str:
    folder = planned.folder
    if not quiet:
        log.info("%s", planned.name)
    trainer = prepare(planned.config, folder, quiet)
    try:
        run_to_end(trainer, folder)
        line = f"{planned.name}: done"
    except TrainingFailed as failed:
        line = f"{planned.name} stopped: {failed}"
        log.warning("%s", line)
        facts = {
            "epoch": failed.epoch,
            "step": failed.step,
            "layer": failed.layer,
            "reason": failed.reason,
        }
        folder.describe(planned.config, trainer.facts())  # not there yet in the first epoch
        write_json_atomically(folder.path / "failure.json", facts)
    folder.remove("checkpoints")  # no use any more, and large
    return line


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
            planned.folder.check()
            here = planned.folder.path
            shutil.copytree(folder, here, ignore=lambda *_: ENDS, dirs_exist_ok=True)
            for name in ENDS:  # last: they say that all is there
                if (folder / name).exists():
                    write_text_atomically(here / name, (folder / name).read_text())
            return True
    return False
