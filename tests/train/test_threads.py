"""How many threads a run has, who decides, and how they wait."""

import subprocess
import sys

import pytest
import torch

from gramian.train import trial
from gramian.train.record.run_folder import RunFolder
from gramian.train.runtime.engine import Engine
from gramian.train.runtime.threads import bound_spinning
from tests.train.tiny import config, trainer


@pytest.fixture
def two_threads(monkeypatch):
    """A machine whose user has said nothing about threads; afterwards there is one again."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    "users", [{}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}, {"KMP_BLOCKTIME": "9"}]
)
def test_a_bounded_spin_unless_the_user_has_a_policy(users):
    environment = dict(users)
    bound_spinning(environment)
    assert environment == (users or {"GOMP_SPINCOUNT": "30000", "KMP_BLOCKTIME": "1"})


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("from gramian import DKMClassifier", "None True"),
        ("from gramian.experiments.cli.main import main; main(['--version'])", "None False"),
        ("from gramian.experiments.cli.main import main; main()", "30000 False"),
    ],
)
def test_only_the_program_says_how_threads_wait_and_before_torch_is_loaded(
    program, expected, monkeypatch
):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    told = "; import os, sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    words = [sys.executable, "-c", program + told, "--version"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[-1] == expected


def test_one_thread_and_all_are_tried_by_the_program_only(two_threads, monkeypatch):
    program = Engine("cpu", owns_process=True)
    assert program.thread_choices() == (1, 2)
    assert Engine("cpu").thread_choices() == (2,)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert program.thread_choices() == (2,)
    torch.set_num_threads(1)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert program.thread_choices() == (1,)


@pytest.mark.parametrize(("seconds", "chosen"), [({1: 0.2, 2: 0.1}, 2), ({1: 0.1, 2: 0.2}, 1)])
def test_the_quicker_number_is_kept_for_the_run_and_its_resumption(
    seconds, chosen, two_threads, tmp_path, monkeypatch, caplog
):
    """Afterwards the process has as many threads as before."""
    used = []

    def train(epochs):
        engine = Engine("cpu", owns_process=True)
        run = trainer(config(max_epochs=epochs), RunFolder(tmp_path / "run"), engine=engine)
        monkeypatch.setattr(trial, "trial_seconds", lambda _: seconds[torch.get_num_threads()])
        run.on_epoch = lambda row: used.append(torch.get_num_threads())
        run.fit()

    with caplog.at_level("INFO", logger="gramian"):
        train(1)
    assert used == [chosen]
    assert f"threads {chosen} (a step with 1: " in caplog.text
    assert torch.get_num_threads() == 2
    seconds[1], seconds[2] = seconds[2], seconds[1]  # the machine is another now
    train(2)
    assert used == [chosen, chosen]


def test_a_run_of_the_library_leaves_the_threads_alone(two_threads):
    run = trainer(config(max_epochs=1))
    run.on_epoch = lambda row: counts.append(torch.get_num_threads())
    counts = []
    run.fit()
    assert counts == [2]
