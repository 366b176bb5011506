"""The short forms of both campaigns: a minute each; the long ones are in docs/RELIABILITY.md."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def campaign(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / name), *words]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=900)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="a full disk needs a C compiler")
def test_a_run_survives_faults_of_many_kinds(tmp_path):
    done = campaign("campaign.py", "--faults", "14", "--output", str(tmp_path / "faults.jsonl"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all | 14 | 0 | 0 | 0 |" in done.stdout


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is bounded on Linux only")
def test_no_loader_is_surprised_by_a_damaged_or_hostile_file():
    done = campaign("fuzz.py", "--files", "60", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("|") for line in done.stdout.splitlines() if line.startswith("|")]
    assert sum(row[2].strip() == "60" for row in rows) >= 15  # a row for each loader
