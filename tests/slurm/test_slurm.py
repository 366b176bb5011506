"""A table as jobs: on this machine, and on a real Slurm of one node.

`make test-slurm` shows what happens. The jobs are signalled and killed on their way, and
their results must be those of runs that nobody has disturbed.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from paper.__main__ import main

HERE = Path(__file__).parent
ROWS = ["headline", "no_skr"]
TABLE = ["stability", "--seeds", "1", "--only", ",".join(ROWS), "--jobs", "2"]
PRECISION = ["--precision", "32-true"]
MISSING = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]


def words(folder: Path, epochs: int, launcher: str) -> list[str]:
    where = ["--output", str(folder), "--launcher", launcher, "--epochs", str(epochs)]
    return [*TABLE, *PRECISION, *where]


def results(folder: Path) -> dict[str, float]:
    """The test log-likelihood of each row."""
    found = {}
    for row in ROWS:
        (path,) = folder.glob(f"*/{row}/seed0/result.json")
        found[row] = json.loads(path.read_text())["metrics"]["test"]["log_likelihood"]
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Results of runs by this program alone, by their epochs."""
    done = {}

    def of(epochs: int) -> dict[str, float]:
        if epochs not in done:
            folder = tmp_path_factory.mktemp("undisturbed")
            assert main([*words(folder, epochs, "here"), "--quiet"]) == 0
            done[epochs] = results(folder)
        return done[epochs]

    return of


def test_jobs_on_this_machine(tmp_path, undisturbed, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(words(tmp_path, 1, "local")) == 0
    assert results(tmp_path) == undisturbed(1)
    (record,) = tmp_path.glob("*/jobs/jobs.json")
    assert len(json.loads(record.read_text())) == 2
    assert "headline, seed 0: job" in capsys.readouterr().err
    assert main(words(tmp_path, 1, "local")) == 0
    assert "job" not in capsys.readouterr().err  # nothing is left


def test_a_cluster_that_is_not_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(words(tmp_path, 1, "slurm")) == 1
    assert "slurm took no jobs" in capsys.readouterr().err
    assert main(["figure-conditions", "--launcher", "slurm"]) == 2


# ---- on a real Slurm ----


@pytest.fixture
def slurm(tmp_path_factory, monkeypatch):
    """A Slurm of one node."""
    if "GRAMIAN_SLURM" not in os.environ:
        pytest.skip("make test-slurm installs one, and runs this")
    assert not MISSING, "needs Debian's slurm-wlm and munge"
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    script = [str(HERE / "one_node.sh")]
    started = subprocess.run([*script, "start", str(folder)], capture_output=True, text=True)
    assert started.returncode == 0, started.stderr
    monkeypatch.setenv("SLURM_CONF", started.stdout.strip())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield folder
    subprocess.run(["scancel", "--me"])
    subprocess.run([*script, "stop", str(folder)])


def reproduce(folder: Path, epochs: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "paper", *words(folder, epochs, "slurm")]
    return subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def wait_for(folder: Path, row: str, count: int, process: subprocess.Popen[str]) -> Path:
    """Until a row has so many epochs."""
    deadline = time.monotonic() + 200
    while True:
        found = list(folder.glob(f"*/{row}/seed0/metrics.jsonl"))
        if found and len(found[0].read_text().splitlines()) >= count:
            return found[0].parent
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def queue() -> dict[str, str]:
    """State of each job that is there."""
    words = ["squeue", "--me", "--array", "--noheader", "--format=%i %T"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(line.split() for line in lines)


def say(*what: object) -> None:
    print("slurm:", *what, flush=True)


def test_jobs_of_a_slurm_array_survive_a_signal_and_a_kill(slurm, tmp_path, undisturbed):
    epochs = 60
    process = reproduce(tmp_path, epochs)
    wait_for(tmp_path, "headline", 3, process)
    (record,) = tmp_path.glob("*/jobs/jobs.json")
    jobs = {Path(path).parent.name: id_ for path, id_ in json.loads(record.read_text()).items()}
    say("submitted", jobs, queue())

    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    say("the command was interrupted, the jobs go on:", queue())
    process = reproduce(tmp_path, epochs)

    subprocess.run(["scancel", "--signal=USR2", jobs["headline"]], check=True)  # as at its limit
    while queue().get(jobs["headline"]) != "PENDING":
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    before = epochs_done(tmp_path)
    say("headline was told in epoch", before, "that its time is over, and is queued again", queue())
    again = ["scontrol", "update", f"JobId={jobs['headline']}", "StartTime=now"]
    subprocess.run(again, check=True)  # Slurm would wait two minutes
    wait_for(tmp_path, "headline", before + 2, process)
    say("headline is back, in epoch", epochs_done(tmp_path), queue())

    victims = [
        child
        for child in psutil.process_iter(["cmdline", "environ"])
        if "submitit.core._submit" in (child.info["cmdline"] or [])
        and (child.info["environ"] or {}).get("SLURM_ARRAY_TASK_ID")
        == jobs["headline"].split("_")[1]
    ]
    assert victims
    for victim in victims:
        victim.kill()
    say("headline was killed, in epoch", epochs_done(tmp_path), queue())

    _, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    assert err.count("headline, seed 0: job") == 1  # submitted anew, but not while it was queued
    assert "no_skr, seed 0: job" not in err
    logs = "".join(path.read_text() for path in record.parent.glob("*_log.*"))
    assert "Requeued job" in logs
    assert results(tmp_path) == undisturbed(epochs)
    say("done, the same results as undisturbed:", results(tmp_path))


def epochs_done(folder: Path) -> int:
    (path,) = folder.glob("*/headline/seed0/metrics.jsonl")
    return len(path.read_text().splitlines())
