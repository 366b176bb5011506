"""The folder of a run: settings, environment, metrics, checkpoints, model and plots."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout

from gramian.train.config import TrainConfig
from gramian.train.record.checkpoint import (
    CONTINUABLE,
    FREE,
    CheckpointError,
    CheckpointFolder,
    State,
    check_same_settings,
    differences,
    digest,
)
from gramian.train.record.files import (
    check_values,
    in_one_line,
    remove_dead_parts,
    write_text_atomically,
)

Row = dict[str, int | float]

ENDS = ("result.json", "failure.json", "model", "plots")  # what a run is not over without
LOGS = ("metrics.jsonl", "metrics.csv", "tensorboard")


class FolderInUse(Exception):
    """Another process writes this run folder."""

    exit_code = 1


class RunFolder:
    """Files of one run, which always belong together.

    ``config.yaml`` (all settings), ``env.json`` (run, data digest, versions, commit, seed, device),
    ``metrics.jsonl`` and ``metrics.csv`` (a row per epoch), ``checkpoints/``, ``model/`` (for
    from_pretrained), ``result.json``, ``plots/``. A run writes nothing before its first checkpoint;
    with that it takes the place of what was there before (``begin``). ``result.json`` is its last
    file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = CheckpointFolder(self.path / "checkpoints")
        self.model = self.path / "model"
        self.plots = self.path / "plots"

    @cached_property
    def _lock(self) -> FileLock:  # made when it is needed: a folder with one cannot be pickled
        return FileLock(self.path / ".lock", timeout=0)

    def __reduce__(self) -> tuple[type[RunFolder], tuple[Path]]:
        """For other processes: the lock stays with the process that holds it."""
        return RunFolder, (self.path,)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers out; one that was killed keeps nobody out. May be nested."""
        if self._lock.is_locked:
            yield
            return
        made = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        lock = Path(self._lock.lock_file)
        try:
            self._lock.acquire()
        except Timeout:
            raise FolderInUse(
                f"{self.path} is in use by process {lock.read_text()}: wait for it, stop it, or "
                "give another --output or --name"
            ) from None
        try:
            with suppress(OSError):  # Windows lets nobody write a locked file
                lock.write_text(f"{os.getpid()} on {platform.node()}")
            self._settle()
            remove_dead_parts(self.path)
            yield
        finally:
            if list(self.path.iterdir()) == [lock]:  # the run had nothing to show
                lock.unlink()
                with suppress(OSError):  # they may be in use by others
                    for path in made:
                        path.rmdir()
            self._lock.release()

    def begin(
        self, config: TrainConfig, environment: Mapping[str, Any], step: int, state: State
    ) -> None:
        """Put the first checkpoint of a run, and what it is of, in place of all that was there.

        Killed at any moment, this leaves the old run or, once the folder is locked again, the new.
        """
        new = RunFolder(self.path / ".new")
        new.checkpoints.save(step, state)
        new.describe(config, environment)
        os.replace(new.path, self.path / ".ready")
        self._settle()

    def resume(self, config: TrainConfig, environment: Mapping[str, Any]) -> None:
        """Record a continuation. What the run had ended with is no longer its end."""
        self._remove(ENDS)
        self.describe(config, environment)

    def describe(self, config: TrainConfig, environment: Mapping[str, Any]) -> None:
        """Write settings and environment."""
        self.path.mkdir(parents=True, exist_ok=True)
        text = f"# run {environment.get('run')}\n"
        text += yaml.safe_dump(config.to_dict(), sort_keys=False)
        write_text_atomically(self.path / "config.yaml", text)
        write_text_atomically(self.path / "env.json", json.dumps(environment, indent=2) + "\n")

    def result(self, config: TrainConfig, data: str) -> dict[str, Any] | None:
        """What a finished run ended with; None if these settings have something left to do.

        A run of other settings or data is refused, and so are files of different runs.
        """
        texts = {
            name: (self.path / name).read_text("utf-8", "replace")
            if (self.path / name).exists()
            else default
            for name, default in {
                "config.yaml": "",
                "env.json": "{}",
                "result.json": "null",
            }.items()
        }
        if not texts["config.yaml"]:
            return None
        now = config.to_dict()
        try:
            before = yaml.safe_load(texts["config.yaml"])
            check_values(before)
            facts, result = json.loads(texts["env.json"]), json.loads(texts["result.json"])
            check_continuation(before, now, facts.get("data"), data)
            mixed = result is not None and result.get("run") != facts.get("run")
        except (yaml.YAMLError, ValueError, AttributeError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{self.path} is damaged: {in_one_line(error)}. Start again with --resume never"
            ) from error
        if mixed:
            raise CheckpointError(
                f"{self.path} holds files of different runs: result.json is of run "
                f"{result.get('run')}, env.json of {facts.get('run')}. Start again with "
                "--resume never"
            )
        changed = differences(before, now, FREE)
        if result is not None and changed and not self.checkpoints.paths():
            raise CheckpointError(
                f"{self.path} is a finished run without checkpoints: it cannot go on with other "
                f"settings ({'; '.join(changed)}). Give another --output or --name"
            )
        return None if changed else result

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write what the run ended with: its last file."""
        write_text_atomically(self.path / "result.json", json.dumps(result, indent=2) + "\n")

    def _settle(self) -> None:
        """Finish what ``begin`` has begun, or drop it if the new run was not complete yet."""
        shutil.rmtree(self.path / ".new", ignore_errors=True)
        ready = self.path / ".ready"
        if ready.is_dir():
            self._remove(ENDS + LOGS)
            for path in ready.iterdir():  # what is no longer here has its place already
                self._remove([path.name])
                os.replace(path, self.path / path.name)
            ready.rmdir()

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

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


def check_continuation(
    before: State, now: State, data_before: str | None, data: str | None
) -> None:
    """Refuse to go on with other settings or data; the same data may lie elsewhere by now."""
    names = {before.get("data"), now.get("data")}
    moved = data is not None and data_before == data and names.isdisjoint(("cifar10", "cifar100"))
    check_same_settings(before, now, CONTINUABLE | {"data"} if moved else CONTINUABLE)
    if data is not None:
        check_same_data(data_before, data)


def check_same_data(before: str | None, now: str) -> None:
    """Refuse to go on with other data; runs of old versions did not record theirs."""
    if before not in (None, now):
        raise CheckpointError(
            f"the data have changed since this run: their digest was {before}, now it is {now}. "
            "Bring back the old data, give another --output or --name, or --resume never to start "
            "again"
        )


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
        "commit": commit(Path(__file__)),
        "source": source_digest(),
    }


def source_digest() -> str:
    """SHA-256 over this package's own Python files."""
    package = Path(__file__).parents[2]
    files = sorted(package.rglob("*.py"))
    return digest({str(path.relative_to(package)): path.read_text() for path in files})


def commit(file: Path) -> str | None:
    """The commit that ``file`` belongs to, with + if the tree is changed; None if none tracks it.

    A repository that only encloses the folder of an installed package says nothing about it.
    """
    git = ["git", "-C", str(file.parent)]
    try:
        tracked = subprocess.run(
            [*git, "ls-files", "--error-unmatch", file.name], capture_output=True, timeout=10
        )
        if tracked.returncode != 0:
            return None
        describe = [*git, "describe", "--always", "--dirty=+", "--abbrev=12"]
        done = subprocess.run(describe, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
