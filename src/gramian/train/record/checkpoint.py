"""Checkpoints: atomic, checked, and loadable without running code from the file."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gramian.train.record.files import write_atomically

State = dict[str, Any]
FORMAT = 1
log = logging.getLogger("gramian")


class CheckpointError(Exception):
    """A checkpoint cannot be used: corrupt, of another version, or of another model."""

    exit_code = 1


def save(path: Path, state: State) -> None:
    """Write ``state`` (tensors, numbers, texts, lists and dictionaries) with its digest."""
    record = {"format": FORMAT, "digest": digest(state), "state": state}
    buffer = io.BytesIO()
    torch.save(record, buffer)
    write_atomically(path, lambda file: file.write(buffer.getbuffer()))


def load(path: Path) -> State:
    """Read a checkpoint; CheckpointError if it is corrupt."""
    try:
        record = torch.load(path, map_location="cpu", weights_only=True)
        state, expected, version = record["state"], record["digest"], record["format"]
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"checkpoint {path} cannot be read: {reason}") from error
    if version != FORMAT:
        raise CheckpointError(f"checkpoint {path} has format {version}, this program {FORMAT}")
    if digest(state) != expected:
        raise CheckpointError(f"checkpoint {path} is corrupt: its digest does not match")
    if not isinstance(state, dict):
        raise CheckpointError(f"checkpoint {path} holds no training state")
    return state


def digest(value: Any) -> str:
    """SHA-256 over the structure and the bytes of all tensors."""
    sha = hashlib.sha256()
    _feed(sha, value)
    return sha.hexdigest()


def _feed(sha: hashlib._Hash, value: Any) -> None:
    if isinstance(value, Tensor):
        sha.update(f"{value.dtype}{tuple(value.shape)}".encode())
        sha.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            sha.update(f"{key!r}:".encode())
            _feed(sha, item)
    elif isinstance(value, list | tuple):
        sha.update(f"[{len(value)}".encode())
        for item in value:
            _feed(sha, item)
    else:
        sha.update(json.dumps(value).encode())


def check_same_settings(before: State, now: State, free: Collection[str]) -> None:
    """Refuse a checkpoint whose settings would give other numbers; ``free`` ones may differ."""
    differ = [
        f"{key}: {before.get(key)} → {now.get(key)}"
        for key in {**before, **now}
        if key not in free and before.get(key) != now.get(key)
    ]
    if differ:
        raise CheckpointError(
            f"the checkpoint is of a run with other settings ({'; '.join(differ)}). "
            "Give another --output, or --resume never to start again"
        )


class CheckpointFolder:
    """The newest checkpoints of a run, named by the steps done: ``step=00001234.ckpt``.

    Args:
        folder: where they are.
        keep: how many to keep; at least 2, so that one is left when the newest is damaged.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.keep = max(keep, 2)

    def save(self, step: int, state: State) -> Path:
        """Write a checkpoint and remove those that are too old."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step={step:08d}.ckpt"
        save(path, state)
        for old in self.paths()[self.keep :]:
            old.unlink()
        return path

    def newest(self) -> State | None:
        """The newest checkpoint that is whole; a damaged one is passed over and said so."""
        for path in self.paths():
            try:
                return load(path)
            except CheckpointError as error:
                log.warning("%s; using the one before", error)
        return None

    def paths(self) -> list[Path]:
        """All checkpoints, newest first."""
        found = self.folder.glob("step=*.ckpt") if self.folder.is_dir() else []
        whole = [path for path in found if re.fullmatch(r"step=\d+\.ckpt", path.name)]
        return sorted(whole, reverse=True)
