"""Processes that share jobs: answers, failures, signals, and what happens when the parent dies."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import psutil
import pytest

from gramian.experiments.pool import JobsFailed, run_jobs
from gramian.train.runtime.signals import Stopped
from tests.experiments import pool_jobs


def wait_until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def folders(tmp_path):
    found = [tmp_path / name for name in "ab"]
    for folder in found:
        folder.mkdir()
    return found


def has_started(folders) -> bool:
    return all((folder / "started").exists() for folder in folders)


def assert_saved_and_gone(folders) -> None:
    wait_until(lambda: all((folder / "checkpoint").exists() for folder in folders))
    numbers = [int((folder / "started").read_text()) for folder in folders]
    wait_until(lambda: not any(map(psutil.pid_exists, numbers)))


@pytest.mark.parametrize("processes", [1, 2])
def test_every_job_is_answered(processes):
    jobs = {str(n): partial(pool_jobs.square, n) for n in range(5)}
    assert sorted(run_jobs(jobs, processes)) == [0, 1, 4, 9, 16]


def test_processes_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert list(run_jobs({"a": pool_jobs.threads, "b": pool_jobs.threads}, 2)) == ["3", "3"]


def test_what_fails_and_what_dies_is_named_and_the_others_are_done():
    jobs = {"wrong": pool_jobs.fail, "dead": pool_jobs.die, "good": partial(pool_jobs.square, 3)}
    answers = []
    with pytest.raises(JobsFailed) as caught:
        answers.extend(run_jobs(jobs, 2))
    assert answers == [9]
    assert "wrong (no such data)" in str(caught.value)
    assert "dead (its process ended with code 7)" in str(caught.value)
    assert caught.value.exit_code == 1


def test_one_process_raises_the_error_itself():
    with pytest.raises(FileNotFoundError, match="no such data"):
        list(run_jobs({"wrong": pool_jobs.fail}, 1))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_all_and_each_saves(folders, number):
    def send() -> None:
        wait_until(lambda: has_started(folders))
        os.kill(os.getpid(), number)

    threading.Thread(target=send).start()
    with pytest.raises(Stopped, match=number.name):
        pool_jobs.main(list(map(str, folders)))
    assert_saved_and_gone(folders)


def test_no_process_outlives_a_killed_parent(folders):
    """SIGKILL cannot be handled: the processes notice it themselves, and save."""
    code = f"from tests.experiments.pool_jobs import main; main({list(map(str, folders))})"
    parent = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: has_started(folders))
    parent.kill()
    parent.wait()
    assert_saved_and_gone(folders)
