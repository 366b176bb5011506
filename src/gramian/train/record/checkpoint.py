"""Checkpoints: atomic, checked, and loadable without running code from the file."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gramian.explained import Explained
from gramian.train.config import MODEL_CONFIGS, TrainConfig
from gramian.train.record.files import in_one_line, write_atomically

State = dict[str, Any]
FORMAT = 1

# Settings that change no result: two runs that differ in these only are the same run.
FREE = frozenset(
    {"data_dir", "device", "devices", "num_nodes", "memory", "recompute_activations"}
    | {"checkpoint_minutes", "conditions", "shard_optimiser", "split_chain"}
)
# What a continuation may change as well: from there on it is another run, and says so.
CONTINUABLE = FREE | {
    *("max_epochs", "patience", "evaluate_every", "on_numerical_error", "max_numerical_errors"),
    *("accumulate", "compile", "calibrate"),
}
# What the state of a run must hold, and as what.
STATE: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("model", "optimiser", "sums", "config"), Mapping),
    **dict.fromkeys(("step", "attempt", "num_errors"), int),
    "rows": list,
    "best": (Mapping, type(None)),
}
log = logging.getLogger("gramian")


class CheckpointError(Explained, Exception):
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
        raise CheckpointError(f"checkpoint {path} cannot be read: {in_one_line(error)}") from error
    if version != FORMAT:
        raise CheckpointError(f"checkpoint {path} has format {version}, this program {FORMAT}")
    if digest(state) != expected:
        raise CheckpointError(f"checkpoint {path} is corrupt: its digest does not match")
    if not isinstance(state, dict):
        raise CheckpointError(f"checkpoint {path} holds no training state")
    return state


def check_state(state: State) -> None:
    """Refuse a state that lacks something, or holds something else: of another version."""
    lacking = sorted(STATE.keys() - state.keys())
    strange = [name for name in STATE.keys() - lacking if not isinstance(state[name], STATE[name])]
    if not lacking and not strange:
        try:
            json.dumps(state["config"])
        except (TypeError, ValueError):
            strange = ["config"]
    if lacking or strange:
        what = f"lacks {', '.join(lacking)}" if lacking else f"has a strange {sorted(strange)[0]}"
        raise CheckpointError(
            f"the newest checkpoint {what}: this version cannot go on from it. Start again with "
            "--resume never"
        )


def digest(value: Any) -> str:
    """SHA-256 over the structure and the bytes of all tensors."""
    sha = hashlib.sha256()
    _feed(sha.update, value)
    return sha.hexdigest()


def _feed(update: Callable[[Any], None], value: Any) -> None:
    if isinstance(value, Tensor):
        update(f"{value.dtype}{tuple(value.shape)}".encode())
        update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            update(f"{key!r}:".encode())
            _feed(update, item)
    elif isinstance(value, list | tuple):
        update(f"[{len(value)}".encode())
        for item in value:
            _feed(update, item)
    else:
        update(json.dumps(value).encode())


def differences(before: State, now: State, free: Collection[str]) -> list[str]:
    """The settings in which two runs differ, but for ``free`` ones.

    What is missing has its default: a setting that is new makes no old run another one.
    """
    try:
        old, new = (_flat(_with_defaults(settings)) for settings in (before, now))
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"the settings are damaged: {in_one_line(error)}") from error
    return [
        f"{key}: {old.get(key)} → {new.get(key)}"
        for key in {**old, **new}
        if key not in free and old.get(key) != new.get(key)
    ]


def check_same_settings(before: State, now: State, free: Collection[str]) -> None:
    """Refuse a run whose settings would give other numbers; ``free`` ones may differ."""
    differ = differences(before, now, free)
    if differ:
        raise CheckpointError(
            f"the run was made with other settings ({'; '.join(differ)}). Give another --output "
            "or --name, or --resume never to start again"
        )


def _with_defaults(settings: State) -> State:
    """All settings, nested as in TrainConfig."""
    kind = settings.get("kind", "conv")
    default = TrainConfig(kind=kind, model=MODEL_CONFIGS[kind]()).to_dict()
    return _merged(default, settings)


def _merged(default: State, given: State) -> State:
    both = {
        key: _merged(default[key], value)
        if isinstance(value, dict) and isinstance(default.get(key), dict)
        else value
        for key, value in given.items()
    }
    return {**default, **both}


def _flat(settings: State, prefix: str = "") -> State:
    """Nested settings by their dotted names."""
    flat: State = {}
    for key, value in settings.items():
        flat |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat


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
        """The newest checkpoint that is whole, or None if there is none; damaged ones are named."""
        paths = self.paths()
        for place, path in enumerate(paths, start=1):
            try:
                return load(path)
            except CheckpointError as error:
                if place == len(paths):
                    raise CheckpointError(
                        f"{error}. No checkpoint in {self.folder} can be used: put back a copy, "
                        "or start again with --resume never"
                    ) from error
                log.warning("%s; using the one before, %s", error, paths[place].name)
        return None

    def paths(self) -> list[Path]:
        """All checkpoints, newest first."""
        found = self.folder.glob("step=*.ckpt") if self.folder.is_dir() else []
        whole = [path for path in found if re.fullmatch(r"step=\d+\.ckpt", path.name)]
        return sorted(whole, reverse=True)
