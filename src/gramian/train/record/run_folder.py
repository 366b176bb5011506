"""The folder of a run: settings, environment, metrics, checkpoints, model and plots."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from gramian.train.config import TrainConfig
from gramian.train.record.checkpoint import CheckpointFolder
from gramian.train.record.files import write_text_atomically

Row = dict[str, int | float]


class RunFolder:
    """Files of one run.

    ``config.yaml`` (all settings), ``env.json`` (versions, commit, seed, device), ``metrics.jsonl``
    and ``metrics.csv`` (a row an epoch), ``checkpoints/``, ``model/`` (for from_pretrained),
    ``plots/``.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = CheckpointFolder(self.path / "checkpoints")
        self.model = self.path / "model"
        self.plots = self.path / "plots"

    def start(self, config: TrainConfig, environment: Mapping[str, Any]) -> None:
        """Write what is known before training."""
        self.path.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(config.to_dict(), sort_keys=False)
        write_text_atomically(self.path / "config.yaml", text)
        write_text_atomically(self.path / "env.json", json.dumps(environment, indent=2) + "\n")

    def write_metrics(self, rows: list[Row]) -> None:
        """Write all rows, as JSON lines and as CSV."""
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        write_text_atomically(self.path / "metrics.jsonl", lines)
        columns = list(dict.fromkeys(key for row in rows for key in row))
        table = io.StringIO()
        writer = csv.DictWriter(table, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text_atomically(self.path / "metrics.csv", table.getvalue())

    def read_metrics(self) -> list[Row]:
        """The rows written so far."""
        path = self.path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def environment(seed: int, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What a result depends on besides its settings."""
    packages = ["gramian", "torch", "numpy", "lightning-fabric", "scikit-learn"]
    return {
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "dtype": str(dtype),
        "seed": seed,
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The commit of the source tree that this package runs from, with + if it is changed."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
