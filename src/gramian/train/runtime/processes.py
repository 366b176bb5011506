"""Processes that train one model together: how they start, and how one notices another's end."""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch.distributed as dist

import __main__

CHILD = "GRAMIAN_STARTED_BY_FIRST_PROCESS"
PATIENCE = 8.0  # seconds that the first process may hang, after an end or two signals to stop


class ProcessLost(Exception):
    """A process of the run has ended before the others."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def is_first_process(processes: int) -> bool:
    """Whether this process, of so many, writes files and messages, as far as its launcher says."""
    names = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
    return processes == 1 or all(os.environ.get(name, "0") == "0" for name in names)


def start_processes(devices: int, port: int) -> list[subprocess.Popen[bytes]]:
    """Start this program again for each further device, unless a launcher has started them all.

    They are out of reach of a terminal's Ctrl-C, which the first process passes on by agreement,
    and they hang on a pipe: when the first process ends, however it does, they end.
    """
    if CHILD in os.environ:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    if devices == 1 or "LOCAL_RANK" in os.environ:
        return []
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(port))
    os.environ["LOCAL_RANK"] = "0"
    script = os.path.abspath(sys.argv[0])
    program = [script] if __main__.__spec__ is None else ["-m", __main__.__spec__.name]
    children = [
        subprocess.Popen(
            [sys.executable, *program, *sys.argv[1:]],
            env=os.environ | {"LOCAL_RANK": str(rank), CHILD: "1"},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        for rank in range(1, devices)
    ]
    threading.Thread(target=_watch, args=(children, _heard_signals()), daemon=True).start()
    atexit.register(_end, children)
    return children


@contextmanager
def noticing_lost(children: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Turn an error of the connection into one that says which process has ended, and how."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        raise _lost(children) from error


def leave() -> None:
    """Leave the other processes, before Python ends.

    First comes a moment without work: a thread of gloo that frees a tensor while Python ends makes
    the process abort.
    """
    time.sleep(0.2)
    if dist.is_initialized():
        dist.destroy_process_group()


def is_lost_connection(error: BaseException) -> bool:
    """Whether a collective call failed because another process is gone."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def _lost(children: list[subprocess.Popen[bytes]]) -> ProcessLost:
    """Which of the children has ended, and how; after a moment, if need be."""
    for _ in range(50):
        for rank, child in enumerate(children, start=1):
            code = child.poll()
            if code:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else "has failed"
                return ProcessLost(
                    f"process {rank} of {len(children) + 1} {how}. The same command goes on from "
                    "the last checkpoint",
                    max(code, 1),
                )
        time.sleep(0.1 if children else 0.0)
    return ProcessLost("the connection to another process of this run is lost")


def _end_with_parent() -> None:
    os.read(0, 1)  # nothing is ever written: this returns when the first process has ended
    os._exit(1)


def _heard_signals() -> int:
    """A pipe that receives the number of each signal at once, also while this process waits.

    Python's own handlers run after the collective call that the main thread waits in.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _watch(children: list[subprocess.Popen[bytes]], signals: int) -> None:
    """Say which child has stopped; end this process if it goes on waiting for others in vain.

    It does so if one is dead (at the start, or on a GPU), if one is stopped when a signal comes,
    and if two signals have not ended it.
    """
    heard: list[int] = []
    stopped: dict[int, str] = {}
    while not any(child.poll() for child in children) and len(heard) < 2:
        if select.select([signals], [], [], 1.0)[0]:
            numbers = os.read(signals, 100)
            heard += [number for number in numbers if number in (signal.SIGINT, signal.SIGTERM)]
        before, stopped = stopped, _stopped(children)
        for rank in stopped.keys() - before.keys():
            sys.stderr.write(
                f"gramian: {stopped[rank]}, and the others wait for it: kill -CONT "
                f"{children[rank - 1].pid} continues it\n"
            )
        if heard and stopped:
            break
    reason = "; ".join(stopped.values())
    if not stopped:
        time.sleep(PATIENCE)
        dead = any(child.poll() for child in children)
        reason = str(_lost(children)) if dead else "the other processes do not answer"
    sys.stderr.write(f"gramian: {reason}\n")
    for child in children:
        child.kill()
    os._exit(128 + heard[0] if heard else 1)


def _stopped(children: list[subprocess.Popen[bytes]]) -> dict[int, str]:
    """The ranks of children that a signal has stopped, and what to say of each."""
    found = {}
    for rank, child in enumerate(children, start=1):
        with suppress(ChildProcessError, AttributeError):  # it has ended; an old Python on a Mac
            state = os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            if state is not None:
                name = signal.Signals(state.si_status).name
                found[rank] = f"process {rank} of {len(children) + 1} is stopped by {name}"
    return found


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    for child in children:
        try:
            child.wait(PATIENCE)
        except subprocess.TimeoutExpired:  # it is stopped
            child.kill()
