"""The folder of a run: settings, environment, metrics, checkpoints, model and plots."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout

from gramian.train.config import ConfigError, TrainConfig
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
    move,
    remove_dead_parts,
    write_text_atomically,
)

Row = dict[str, int | float]
log = logging.getLogger("gramian")

PLOTS = (
    *("learning_curves", "kl_terms", "condition_numbers", "inducing_patches", "reliability"),
    *("confusion", "certain_images", "predictions"),
)
FILES_OF_A_MODEL = ("model/model.safetensors", "model/config.json")
FILES = (
    "config.yaml",
    "env.json",
    "checkpoints/step=*.ckpt",
    "metrics.jsonl",
    "metrics.csv",
    "tensorboard/events.out.tfevents.*",
    *FILES_OF_A_MODEL,
    *(f"plots/{name}.png" for name in PLOTS),
    "failure.json",
    "result.json",
)
"""All that a run writes, and all that a new run in its place removes."""
ENDS = ("result.json", "failure.json", "model", "plots")  # what a run is not over without
LOGS = ("metrics.jsonl", "metrics.csv", "tensorboard")
LOCK, NEW, READY = ".gramian-lock", ".gramian-new", ".gramian-ready"
SETTINGS = {"kind", "data", "seed", "max_epochs", "model"}  # of a run, whichever version made it


class FolderInUse(Exception):
    """Another process writes this run folder."""

    exit_code = 1


class RunFolder:
    """Files of one run, which always belong together.

    ``config.yaml`` (all settings), ``env.json`` (run, data digest, versions, commit, seed, device),
    ``metrics.jsonl`` and ``metrics.csv`` (a row per epoch), ``checkpoints/``, ``model/`` (for
    from_pretrained), ``plots/``, ``result.json``. A run writes nothing before its first checkpoint;
    with that it takes the place of the run that was there before (``begin``). ``result.json`` is
    its last file. Files that are not in ``FILES`` are left alone, and so is a folder that holds
    files and no run (``check``).
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = CheckpointFolder(self.path / "checkpoints")
        self.model = self.path / "model"
        self.plots = self.path / "plots"

    @cached_property
    def _lock(self) -> FileLock:  # made when it is needed: a folder with one cannot be pickled
        return FileLock(self.path / LOCK, timeout=0)

    def __reduce__(self) -> tuple[type[RunFolder], tuple[Path]]:
        """For other processes: the lock stays with the process that holds it."""
        return RunFolder, (self.path,)

    def check(self) -> None:
        """Refuse a folder that holds anything but a run, and links to nowhere."""
        for path in (self.path, self.checkpoints.folder, self.model, self.plots):
            if path.is_symlink() and not path.exists():
                raise ConfigError(
                    f"{path} is a link to {os.readlink(path)}, which is not there: make that "
                    "folder, or remove the link"
                )
            if path.exists() and not path.is_dir():
                raise ConfigError(f"{path} is in the way: it must be a folder")
        settings = (self.path / "config.yaml", self.path / READY / "config.yaml")
        if not self.path.exists() or any(map(self._is_run, settings)):
            return
        strangers = {path.name for path in self.path.iterdir()} - {LOCK, NEW, READY}
        if strangers:
            raise ConfigError(
                f"{self.path} is not empty and no run of gramian (it has no config.yaml of one, "
                f"but {', '.join(sorted(strangers)[:3])}), so nothing is written there: give "
                "another --output or --name"
            )

    @staticmethod
    def _is_run(path: Path) -> bool:
        """Whether a file holds the settings of a run, damaged or not."""
        if not path.is_file():
            return False
        text = path.read_text("utf-8", "replace")
        if text.startswith("# run "):
            return True
        try:  # runs of older versions have no such line
            settings = yaml.safe_load(text)
        except yaml.YAMLError:
            return False
        return isinstance(settings, dict) and settings.keys() >= SETTINGS

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers out; one that was killed keeps nobody out. May be nested."""
        if self._lock.is_locked:
            yield
            return
        self.check()
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
            for pattern in FILES:
                remove_dead_parts(self.path / pattern)
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
        new = RunFolder(self.path / NEW)
        new.checkpoints.save(step, state)
        new.describe(config, environment)
        os.replace(new.path, self.path / READY)
        self._settle()

    def resume(self, config: TrainConfig, environment: Mapping[str, Any]) -> None:
        """Record a continuation. What the run had ended with is no longer its end."""
        self.remove(*ENDS)
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
        return None if changed or (result is not None and self._lacks_something()) else result

    def _lacks_something(self) -> bool:
        """Whether files of a finished run are gone or empty, which its last checkpoint restores."""
        names = ("env.json", "metrics.jsonl", "metrics.csv", *FILES_OF_A_MODEL)
        paths = {name: self.path / name for name in names}
        missing = [n for n, path in paths.items() if not (path.is_file() and path.stat().st_size)]
        if missing and self.checkpoints.paths():
            log.info("%s lacks %s: made again", self.path, ", ".join(missing))
            return True
        if missing:
            log.warning(
                "%s lacks %s, and has no checkpoint to make it from again; --resume never would "
                "train again",
                self.path,
                ", ".join(missing),
            )
        return False

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write what the run ended with: its last file."""
        write_text_atomically(self.path / "result.json", json.dumps(result, indent=2) + "\n")

    def _settle(self) -> None:
        """Finish what ``begin`` has begun, or drop it if the new run was not complete yet."""
        shutil.rmtree(self.path / NEW, ignore_errors=True)
        ready = RunFolder(self.path / READY)
        if not ready.path.is_dir():
            return
        self.remove(*ENDS, *LOGS)
        if ready.checkpoints.paths():  # once they are moved, the old ones are gone
            self.remove("checkpoints")
        for source in sorted(path for path in ready.path.rglob("*") if path.is_file()):
            target = self.path / source.relative_to(ready.path)
            target.parent.mkdir(exist_ok=True)
            move(source, target)
        shutil.rmtree(ready.path)

    def remove(self, *names: str) -> None:
        """Remove files of a run, and of folders the files that a run writes there."""
        for pattern in FILES:
            name, _, inner = pattern.partition("/")
            if name in names:
                for path in self.path.glob(pattern):
                    path.unlink()
                if inner:
                    with suppress(OSError):  # it holds something else, or is a link
                        (self.path / name).rmdir()

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
