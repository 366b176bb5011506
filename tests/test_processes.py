"""The real program as a process: killed, stopped, and spread over two processes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gramian import Predictor

RUN = [
    sys.executable, "-m", "gramian", "train", "--preset", "digits", "--train_size", "96",
    "--batch_size", "16", "--model.num_inducing", "[8,8]", "--model.num_samples", "10",
    "--checkpoint_minutes", "0", "--conditions", "false", "--plots", "false", "--name", "run",
]  # fmt: skip
EPOCHS = 12
KILLS = int(os.environ.get("GRAMIAN_KILLS", "3"))  # the issue asks for 20: minutes, so by hand
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [*RUN, "--output", str(folder), "--max_epochs", str(EPOCHS), *words]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=300)
    return process.returncode, err


def steps_done(folder: Path) -> int:
    names = [path.name for path in (folder / "run" / "checkpoints").glob("step=*.ckpt")]
    return max((int(name[5:13]) for name in names), default=0)


def wait_for_steps(process: subprocess.Popen[str], folder: Path, steps: int) -> None:
    deadline = time.monotonic() + 200
    while steps_done(folder) < steps and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(Predictor.from_pretrained(folder / "run" / "model").model.state_dict())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert finish(start(folder))[0] == 0
    return weights(folder)


def assert_equal(a, b) -> None:
    assert all(torch.equal(a[name], b[name]) for name in b)


def test_killed_again_and_again_the_run_ends_with_the_same_weights(tmp_path, undisturbed):
    chance = random.Random(0)
    total = EPOCHS * 6
    goals = sorted(chance.randrange(1, total) for _ in range(KILLS))
    for goal in goals:
        process = start(tmp_path)
        wait_for_steps(process, tmp_path, goal)
        time.sleep(chance.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        assert finish(process)[0] == -signal.SIGKILL
    code, err = finish(start(tmp_path))
    assert code == 0
    assert "resuming at epoch" in err
    assert_equal(weights(tmp_path), undisturbed)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == EPOCHS


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_politely_it_writes_a_checkpoint_first(tmp_path, undisturbed, number, code):
    process = start(tmp_path, "--checkpoint_minutes", "60")
    wait_for_steps(process, tmp_path, 6)  # the first epoch's
    process.send_signal(number)
    got, err = finish(process)
    assert got == code
    assert "Traceback" not in err
    assert f"stopped by {number.name}" in err
    assert steps_done(tmp_path) >= 6
    assert finish(start(tmp_path))[0] == 0
    assert_equal(weights(tmp_path), undisturbed)


def test_two_processes_give_the_result_of_one(tmp_path):
    """The same noise, half the batch each, statistics over both: equal but for rounding."""
    figures = []
    for devices in ("1", "2"):
        folder = tmp_path / devices
        words = ["--devices", devices, "--precision", "64-true", "--device", "cpu", "--json"]
        process = start(folder, *words, "--max_epochs", "2", "--batch_size", "15")
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        rows = [
            json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()
        ]
        figures.append((json.loads(out)["figures"]["test"]["log_likelihood"], rows))
    (one, rows_one), (two, rows_two) = figures
    assert two == pytest.approx(one, rel=1e-6)
    for a, b in zip(rows_one, rows_two, strict=True):
        assert b["train_accuracy"] == a["train_accuracy"]
        assert b["objective"] == pytest.approx(a["objective"], rel=1e-6)
        assert b["total_kl"] == pytest.approx(a["total_kl"], rel=1e-6)
