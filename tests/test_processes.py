"""The real program as processes: killed, stopped, and several for one run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from gramian import Predictor
from gramian.experiments.cli.main import main
from gramian.train.runtime import processes
from tests.three_processes import SETTINGS
from tests.train.tiny import assert_same_weights, config, trainer, weights

KILLS = int(os.environ.get("GRAMIAN_KILLS", "1"))  # 20 take minutes, so by hand
EPOCHS, STEPS = 28 + 2 * KILLS, 3  # 35 = 2 · 16 + 3
TRAIN = [
    "train", "--preset", "digits", "--train_size", "35", "--batch_size", "16",
    "--model.num_inducing", "[8,8]", "--model.num_samples", "10", "--evaluate_every", "100",
    "--checkpoint_minutes", "0", "--conditions", "false", "--plots", "false", "--device", "cpu",
    "--max_epochs", str(EPOCHS), "--devices", "2", "--name", "run", "--output",
]  # fmt: skip
ROOT = Path(__file__).parents[1]
PATH = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PATH}


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=300)
    return process.returncode, err


def steps_done(folder: Path) -> int:
    names = [path.name for path in (folder / "run" / "checkpoints").glob("step=*.ckpt")]
    return max((int(name[5:13]) for name in names), default=0)


def wait_for_steps(process: subprocess.Popen[str], folder: Path, steps: int) -> psutil.Process:
    """Wait until there is a second process and so many steps are saved; returns the process."""
    deadline, second = time.monotonic() + 200, None
    while second is None or steps_done(folder) < steps:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
        second = second_process(process)
    return second


def second_process(process: subprocess.Popen[str]) -> psutil.Process | None:
    """The other process of a run; libraries start short ones, too, such as lscpu."""
    for child in psutil.Process(process.pid).children():
        with suppress(psutil.Error):  # it may have ended
            if "gramian.__main__" in child.cmdline():
                return child
    return None


def saved_weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(Predictor.from_pretrained(folder / "run" / "model").model.state_dict())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Weights of a run by torchrun, which takes the place of another run in the same folder."""
    folder = tmp_path_factory.mktemp("undisturbed")
    other = ["--max_epochs", "1", "--devices", "1", "--lr", "0.1", "--quiet"]
    assert main([*TRAIN, str(folder), *other]) == 0
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    code, err = finish(
        start(*torchrun, "-m", "gramian", *TRAIN, str(folder), "--resume", "never", "--quiet")
    )
    assert code == 0, err
    assert "distributed_backend" not in err  # Fabric's banner
    assert len((folder / "run" / "metrics.jsonl").read_text().splitlines()) == EPOCHS
    return saved_weights(folder)


def test_killed_and_stopped_again_and_again_a_run_of_two_ends_with_the_same_weights(
    tmp_path, undisturbed, capsys
):
    chance = random.Random(0)
    ends = ["kill"] * KILLS + ["Ctrl-C", "SIGTERM to the second"]
    chance.shuffle(ends)
    for end in ends:
        goal = steps_done(tmp_path) + chance.randrange(end != "kill", 4)
        process = start("-m", "gramian", *TRAIN, str(tmp_path))
        child = wait_for_steps(process, tmp_path, goal)
        if end == "kill":
            time.sleep(chance.random() * 0.1)
            victim = chance.choice([process, child])
            victim.send_signal(signal.SIGKILL)
            code, err = finish(process)
            assert code == (-signal.SIGKILL if victim is process else 1), err
            assert victim is process or "process 1 of 2 was killed by SIGKILL" in err
        else:
            assert main([*TRAIN, str(tmp_path)]) == 1  # a second writer is refused
            assert f"in use by process {process.pid}" in capsys.readouterr().err
            number = signal.SIGINT if end == "Ctrl-C" else signal.SIGTERM
            (process if end == "Ctrl-C" else child).send_signal(number)
            code, err = finish(process)
            assert code == 128 + number, err
            assert err.count(f"stopped by {number.name}") == 1
        assert "Traceback" not in err
        assert "gloo" not in err
        psutil.wait_procs([child], timeout=20)
        assert not child.is_running()
        assert steps_done(tmp_path) >= goal
    resumed = f"resuming at epoch {steps_done(tmp_path) / STEPS:.2f}"
    code, err = finish(start("-m", "gramian", *TRAIN, str(tmp_path)))
    assert code == 0, err
    assert resumed in err
    assert_same_weights(saved_weights(tmp_path), undisturbed)
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == list(range(1, EPOCHS + 1))
    assert not list(tmp_path.rglob("*.part"))


def test_a_stopped_process_is_named_and_a_signal_ends_all(tmp_path):
    process = start("-m", "gramian", *TRAIN, str(tmp_path), "--max_epochs", "100000", "--quiet")
    child = wait_for_steps(process, tmp_path, 1)
    message = (
        f"process 1 of 2 is stopped by SIGSTOP, and the others wait for it: kill -CONT {child.pid}"
    )
    child.suspend()
    assert message in process.stderr.readline()
    child.resume()
    wait_for_steps(process, tmp_path, steps_done(tmp_path) + 2)
    child.suspend()
    process.terminate()
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (143, "gramian: process 1 of 2 is stopped by SIGSTOP\n")
    psutil.wait_procs([child], timeout=20)
    assert not child.is_running()


def test_two_signals_end_processes_that_hang_within_ten_seconds(monkeypatch, capsys):
    """Neither the first process nor the other comes to the end of its step."""
    waited = []
    monkeypatch.setattr(processes.time, "sleep", waited.append)
    monkeypatch.setattr(os, "_exit", lambda code: waited.append(f"exit {code}"))
    reading, writing = os.pipe()
    os.write(writing, bytes([signal.SIGTERM, signal.SIGTERM]))
    with subprocess.Popen(["sleep", "60"]) as child:
        processes._watch([child], reading)
        assert child.wait() == -signal.SIGKILL
    os.close(reading), os.close(writing)
    assert waited[-1] == "exit 143"
    assert sum(waited[:-1]) <= 9
    assert capsys.readouterr().err == "gramian: the other processes do not answer\n"


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """What each of three processes has seen."""
    folder = tmp_path_factory.mktemp("three")
    code, err = finish(start(str(ROOT / "tests" / "three_processes.py"), str(folder)))
    assert code == 0, err
    return torch.load(folder / "seen.pt", weights_only=True)


def test_three_processes_give_the_result_of_one(three):
    """The same noise, a share of the batch each, statistics over all: equal but for rounding."""
    one = trainer(config(**SETTINGS))
    for seen in three:
        for row, expected in zip(seen["rows"], one.rows or one.fit(), strict=True):
            assert row["train_accuracy"] == expected["train_accuracy"]
            for name in ("objective", "total_kl", "test_log_likelihood"):
                assert row[name] == pytest.approx(expected[name], rel=1e-9)
        for name, value in weights(one).items():
            torch.testing.assert_close(seen["weights"][name], value)


@pytest.mark.parametrize("run", ["split", "split, recomputed"])
def test_processes_that_share_the_inducing_chain_give_the_result_of_one(three, run):
    one = trainer(config(**SETTINGS))
    one.fit()
    for seen in three:
        assert_same_weights(seen[run], three[0][run])
        for name, value in weights(one).items():
            torch.testing.assert_close(seen[run][name], value, rtol=1e-10, atol=1e-10)


def test_an_error_in_one_process_is_the_same_error_in_all(three):
    for seen in three:
        assert seen["raise"].startswith("epoch 1, step 3: stage1_block1.layer1: 1 of 32 variances")
        num_errors, left_out = seen["skip"]
        assert num_errors == 1
        assert_same_weights(left_out, three[0]["skip"][1])


def test_a_signal_to_one_process_stops_all_at_one_step_and_nothing_is_lost(three):
    timed = ("seconds", "memory_mb")
    for seen in three:
        assert seen["stop"] == (5, 143)
        assert_same_weights(seen["resumed"], seen["weights"])
        for row, expected in zip(seen["resumed rows"], seen["rows"], strict=True):
            assert {**row, **dict.fromkeys(timed)} == {**expected, **dict.fromkeys(timed)}


def test_a_table_in_two_processes_gives_the_result_of_one(tmp_path):
    """With natural gradients, which leave some parameters out of what processes exchange."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 3))
    np.savez(tmp_path / "table.npz", x=x, y=np.sin(x[:, :1]))
    words = ["-m", "gramian", "train", "--data", str(tmp_path / "table.npz"), "--max_epochs", "3",
             "--batch_size", "20", "--model.num_inducing", "8", "--quiet", "--plots", "false",
             "--device", "cpu", "--name", "run", "--output"]  # fmt: skip
    for devices in ("1", "2"):
        code, err = finish(start(*words, str(tmp_path / devices), "--devices", devices))
        assert code == 0, err
    one, two = saved_weights(tmp_path / "1"), saved_weights(tmp_path / "2")
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-7, atol=1e-7, msg=name)
