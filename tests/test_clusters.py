"""Many processes, on one machine and on two, give the numbers of one."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gramian import Predictor
from gramian.experiments.cli.main import main

TRAIN = [
    "train", "--preset", "digits", "--model.num_inducing", "[8,8]", "--model.num_samples", "10",
    "--evaluate_every", "100", "--conditions", "false", "--plots", "false", "--device", "cpu",
    "--precision", "64-true", "--name", "run", "--quiet",
]  # fmt: skip
TEN_STEPS = ["--train_size", "512", "--batch_size", "256", "--max_epochs", "5"]
LAST_OF_THREE = ["--train_size", "35", "--batch_size", "16", "--max_epochs", "3"]  # 16 + 16 + 3
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def agents(processes: int, nodes: int, words: list[str]) -> list[subprocess.Popen[str]]:
    """One ``torchrun`` for each machine, all on this one."""
    port = free_port()
    launcher = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}",
        f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
        "--rdzv-id=test", "--local-addr=127.0.0.1", "-m", "gramian", *words,
    ]  # fmt: skip
    counts = ["--devices", str(processes), "--num_nodes", str(nodes)]
    return [
        subprocess.Popen(
            [*launcher, *counts], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True,
            stdout=subprocess.DEVNULL,
        )
        for _ in range(nodes)
    ]  # fmt: skip


def run(processes: int, folder: Path, words: list[str], nodes: int = 1) -> None:
    """Train to the end."""
    if processes * nodes == 1:
        assert main([*TRAIN, *words, "--output", str(folder)]) == 0
        return
    for agent in agents(processes, nodes, [*TRAIN, *words, "--output", str(folder)]):
        _, err = agent.communicate(timeout=300)
        assert agent.returncode == 0, err


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(Predictor.from_pretrained(folder / "run" / "model").model.state_dict())


def assert_close(found: Path, expected: Path) -> None:
    others = weights(expected)
    for name, value in weights(found).items():
        torch.testing.assert_close(value, others[name], rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one process, by its settings."""
    done: dict[tuple[str, ...], Path] = {}

    def folder_of(words: list[str]) -> Path:
        if tuple(words) not in done:
            done[tuple(words)] = tmp_path_factory.mktemp("alone")
            run(1, done[tuple(words)], words)
        return done[tuple(words)]

    return folder_of


@pytest.mark.parametrize(
    ("processes", "nodes", "words", "how"),
    [
        (2, 1, TEN_STEPS, []),
        (2, 1, TEN_STEPS, ["--shard_optimiser", "true"]),
        (4, 1, LAST_OF_THREE, []),
        (1, 2, LAST_OF_THREE, []),
        (2, 1, [*LAST_OF_THREE, "--accumulate", "2"], []),
    ],
    ids=["2 × 128", "2 × 128, sharded", "4, last batch of 3", "two agents", "accumulated"],
)
def test_many_processes_give_the_weights_of_one(tmp_path, alone, processes, nodes, words, how):
    run(processes, tmp_path, [*words, *how], nodes)
    assert_close(tmp_path, alone(words))


@pytest.mark.parametrize("sharded", ["false", "true"])
def test_what_two_have_saved_one_and_three_go_on_with(tmp_path, alone, sharded):
    words = [*LAST_OF_THREE, "--max_epochs", "12", "--checkpoint_minutes", "0"]
    two = tmp_path / "two"
    command = [*TRAIN, *words, "--shard_optimiser", sharded, "--output", str(two)]
    (agent,) = agents(2, 1, command)
    deadline = time.monotonic() + 200
    while not list(two.glob("run/checkpoints/step=*")):
        assert time.monotonic() < deadline
        assert agent.poll() is None, agent.communicate()
        time.sleep(0.01)
    agent.send_signal(signal.SIGTERM)
    agent.communicate(timeout=100)
    assert not (two / "run" / "result.json").exists()
    for processes in (1, 3):
        folder = tmp_path / str(processes)
        shutil.copytree(two, folder)
        run(processes, folder, [*words, "--shard_optimiser", sharded])
        began, ended = (
            json.loads((where / "run" / name).read_text())["run"]
            for where, name in ((two, "env.json"), (folder, "result.json"))
        )
        assert began == ended  # it went on, and did not start again
        assert_close(folder, alone(words))
