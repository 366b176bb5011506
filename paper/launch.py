"""Runs as jobs: an array of a Slurm cluster, or processes of this machine, through submitit.

A job that its cluster stops for time or for others saves, asks to be queued again, and goes on from
its checkpoint. While ``launch`` waits, a job that died without a word is submitted anew. It may be
interrupted at any time: the jobs of a cluster go on, and the next call finds them.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from gramian.explained import Explained, MissingExtraError
from gramian.train.record.files import in_one_line, write_json_atomically
from gramian.train.runtime.signals import Stopped, StopSignals
from paper.plan import Plan, PlannedRun
from paper.table_runs import left_to_do, run_one

Launcher = Literal["slurm", "local"]
FOLDER, RECORD = "jobs", "jobs.json"
ATTEMPTS = 4  # submissions of a run, of which all but the last have died
SECONDS = 2.0  # between looks at the queue
log = logging.getLogger("gramian")


class LaunchError(Explained, Exception):
    """The cluster does not do what is asked of it."""

    exit_code = 1


class RunJob:
    """One run as submitit takes it: a function, and what to do when its time is over."""

    def __call__(self, planned: PlannedRun) -> str:
        """Train to the end. Told that its time is over, save, and leave the rest to submitit."""
        asked = []
        number = getattr(signal, f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}")

        def save(*_: Any) -> None:
            asked.append(True)
            os.kill(os.getpid(), signal.SIGTERM)  # which a run knows

        queue_again = signal.signal(number, save)
        try:
            return run_one(planned, quiet=True)
        except Stopped:
            if asked and callable(queue_again):
                queue_again(number, None)
            raise
        finally:
            signal.signal(number, queue_again)

    def checkpoint(self, planned: PlannedRun) -> Any:
        """What to do when the job is back: the same, which resumes."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, planned)


class Cluster:
    """Where jobs run.

    Args:
        launcher: a Slurm cluster, or this machine.
        at_a_time: jobs that may run together.
        resources: for submitit: timeout_min, cpus_per_task, gpus_per_node, slurm_partition, ….
    """

    def __init__(self, launcher: Launcher, at_a_time: int, resources: Mapping[str, Any]) -> None:
        self.launcher, self.at_a_time, self.resources = launcher, at_a_time, resources
        self.jobs: dict[str, Any] = {}  # of this process

    def submit(self, runs: Sequence[PlannedRun], folder: Path) -> list[str]:
        """Submit runs as one array; the names of their jobs."""
        try:
            import submitit
        except ImportError as error:
            raise MissingExtraError(f"--launcher {self.launcher}", "slurm") from error
        settings: dict[str, Any] = {"timeout_min": 24 * 60, **self.resources}
        if self.launcher == "slurm":
            settings = {"slurm_array_parallelism": self.at_a_time, **settings}
        try:
            executor = submitit.AutoExecutor(
                folder, cluster=self.launcher, slurm_max_num_timeout=1000
            )
            executor.update_parameters(name="gramian", **settings)
            jobs = executor.map_array(RunJob(), runs)
        except (RuntimeError, NameError, OSError, subprocess.SubprocessError) as error:
            raise LaunchError(f"{self.launcher} took no jobs: {in_one_line(error)}") from error
        for run, job in zip(runs, jobs, strict=True):
            log.info("%s: job %s", run.name, job.job_id)
        self.jobs |= {job.job_id: job for job in jobs}
        return [job.job_id for job in jobs]

    def alive(self, ids: Collection[str]) -> set[str]:
        """Which of the jobs wait or run."""
        if not ids:
            return set()
        if self.launcher == "local":
            return {id_ for id_ in ids if id_ in self.jobs and not self.jobs[id_].done()}
        words = ["squeue", "--me", "--array", "--noheader", "--format=%i"]
        for _ in range(30):
            done = subprocess.run(words, capture_output=True, text=True)
            if done.returncode == 0:
                return set(ids) & set(done.stdout.split())
            time.sleep(SECONDS)  # a controller may be away for a while
        raise LaunchError(
            f"squeue fails: {done.stderr.strip()}. The jobs that were submitted go on"
        )

    def leave(self) -> None:
        """Jobs of a cluster go on without this program; those of this machine end with it."""
        if self.launcher == "slurm":
            log.info("the jobs go on; the same command finds them")
        else:
            for job in self.jobs.values():
                job.cancel(check=False)


def launch(plans: Sequence[Plan], cluster: Cluster, wait: bool = True) -> None:
    """Submit what is left of the plans and has no job yet; ``wait`` until all is done."""
    for plan in plans:
        plan.write()
    jobs = {id_: name for plan in plans for name, id_ in _jobs_of(plan).items()}
    attempts: Counter[str] = Counter()
    with StopSignals() as stop:
        while True:
            alive = cluster.alive(jobs)
            jobs |= submit_missing(plans, cluster, {jobs[id_] for id_ in alive}, attempts)
            alive = cluster.alive(jobs)
            if not alive or not wait:
                return
            while len(cluster.alive(alive)) == len(alive):
                time.sleep(SECONDS)
                if stop.received is not None:
                    cluster.leave()
                    raise Stopped(stop.received)


def submit_missing(
    plans: Sequence[Plan], cluster: Cluster, busy: Collection[str], attempts: Counter[str]
) -> dict[str, str]:
    """Submit the runs that have neither a result nor a job; the new jobs, and of which run each is.

    A cluster has a queue, this machine has none: here only as many are started as may run.
    """
    room = cluster.at_a_time - len(busy) if cluster.launcher == "local" else None
    new: dict[str, str] = {}
    for plan in plans:
        left = [run for run in left_to_do(plan) if _place(run) not in busy][:room]
        for run in left:
            attempts[_place(run)] += 1
            if attempts[_place(run)] > ATTEMPTS:
                raise LaunchError(
                    f"{run.name} has ended {ATTEMPTS} times without a result: see "
                    f"{plan.folder / FOLDER}"
                )
        if left:
            ids = cluster.submit(left, plan.folder / FOLDER)
            names = dict(zip(map(_place, left), ids, strict=True))
            write_json_atomically(plan.folder / FOLDER / RECORD, _jobs_of(plan) | names)
            new |= {id_: name for name, id_ in names.items()}
            room = None if room is None else room - len(left)
    return new


def _place(run: PlannedRun) -> str:
    """The run's name in the record of jobs."""
    return str(run.folder.path)


def _jobs_of(plan: Plan) -> dict[str, str]:
    """Jobs that were submitted earlier, by the run."""
    path = plan.folder / FOLDER / RECORD
    found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return found
