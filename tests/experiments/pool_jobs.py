"""Jobs for ``test_pool.py``, in a module of their own so that other processes can import them."""

import os
import time
from pathlib import Path

from gramian.experiments.pool import run_jobs
from gramian.train.runtime.signals import Stopped, StopSignals


def square(value: int) -> int:
    return value**2


def threads() -> str:
    return os.environ["OMP_NUM_THREADS"]


def fail() -> None:
    raise FileNotFoundError("no such data")


def die() -> None:
    os._exit(7)


def train(folder: Path) -> None:
    """Say who is at work; when stopped, write a checkpoint."""
    with StopSignals() as stop:
        (folder / "started").write_text(str(os.getpid()))
        end = time.monotonic() + 60
        while stop.received is None and time.monotonic() < end:
            time.sleep(0.01)
        (folder / "checkpoint").write_text("whole")
    raise Stopped(stop.received)


def main(folders: list[str]) -> None:
    """A parent of two jobs that never end by themselves."""
    from functools import partial

    list(run_jobs({folder: partial(train, Path(folder)) for folder in folders}, 2))
