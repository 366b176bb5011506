"""Jobs in several processes: answers as they come, and no process outlives its parent.

A job is a function without arguments that can be pickled. Ctrl-C and SIGTERM in the parent, and the
parent's death, reach every process as SIGTERM: a job under ``StopSignals`` saves and then stops.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, TypeVar

from gramian.explained import Explained
from gramian.train.runtime.signals import Stopped, StopSignals

Answer = TypeVar("Answer")


class JobsFailed(Explained, Exception):
    """Some jobs have no answer; the others have been done."""

    def __init__(self, failures: Mapping[str, Failure]) -> None:
        named = "; ".join(f"{name} ({failure.reason})" for name, failure in failures.items())
        super().__init__(f"without a result: {named}. The same command tries again")
        codes = {failure.exit_code for failure in failures.values()}
        self.exit_code = codes.pop() if len(codes) == 1 else 1


class Failure(NamedTuple):
    """Why a job has no answer: its error, or the end of its process."""

    reason: str
    exit_code: int


def run_jobs(jobs: Mapping[str, Callable[[], Answer]], processes: int) -> Iterator[Answer]:
    """The answers of named jobs, in the order in which they are ready.

    One process is this one: jobs run one after the other, and their errors are raised. Several
    processes share the cores, and each takes the next job when it is ready; what failed is named
    at the end. ``Stopped`` is raised after all processes have ended.
    """
    if processes == 1:
        for job in jobs.values():
            yield job()
        return
    waiting, failures = list(jobs.items()), dict[str, Failure]()
    count = min(processes, len(jobs))
    threads = max(1, (os.cpu_count() or 1) // max(1, count))
    workers = [_Worker(threads) for _ in range(count)]
    try:
        with StopSignals() as stop:
            for worker in workers:
                worker.take(waiting.pop(0))
            while busy := {worker.pipe: worker for worker in workers if worker.job is not None}:
                for pipe in wait(list(busy), timeout=0.2):
                    worker = busy[pipe]  # type: ignore[index]
                    name, answer = worker.answer()
                    if isinstance(answer, Failure):
                        failures[name] = answer
                    else:
                        yield answer
                    if waiting:
                        worker.take(waiting.pop(0))
                if stop.received is not None:
                    raise Stopped(stop.received)
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
    if failures:
        raise JobsFailed(failures)


class _Worker:
    """A process, the pipe to it, and the name of the job that it has."""

    process: BaseProcess
    pipe: Connection

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.job: str | None = None
        self.start()

    def start(self) -> None:
        """Begin a process that loads nothing heavy before its first job."""
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.threads))
        self.process.start()
        theirs.close()

    def take(self, named: tuple[str, Callable[[], Any]]) -> None:
        """Begin a job; a process that has died is replaced."""
        if not self.process.is_alive():
            self.start()
        self.job = named[0]
        self.pipe.send(named[1])

    def answer(self) -> tuple[str, Any]:
        """The job's name and what came of it."""
        name, self.job = self.job, None
        assert name is not None
        try:
            return name, self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return name, Failure(f"its process ended with code {self.process.exitcode}", 1)


def _serve(pipe: Connection, threads: int) -> None:
    """Do jobs until the pipe closes."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C is for the parent, which says when to stop
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    while True:
        try:
            job = pipe.recv_bytes()
        except (EOFError, ConnectionError):
            return
        try:
            answer = pickle.loads(job)()  # the first job loads torch
        except KeyboardInterrupt as stop:  # or Stopped, after the job has saved
            sys.exit(getattr(stop, "exit_code", 130))
        except Exception as error:
            reason = str(error) or type(error).__name__
            answer = Failure(reason, getattr(error, "exit_code", 1))
        pipe.send(answer)


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    signal.raise_signal(signal.SIGTERM)
