"""Trained models that come with the package, by name: ``pretrained:digits``.

Each is a folder as a run leaves it: ``config.yaml`` (all settings), ``model/``, and besides them
``README.md`` (the model card) and ``usual.json`` (how strange the model finds its test data).
``examples/pretrained.py`` makes them of runs.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from gramian.explained import Explained

PREFIX = "pretrained:"


class PretrainedError(Explained, Exception):
    """A folder does not hold a saved model that this version can read."""

    exit_code = 1


def pretrained() -> dict[str, Path]:
    """The folders, by name."""
    folder = Path(str(resources.files(__name__)))
    return {path.parent.name: path.parent for path in sorted(folder.glob("*/config.yaml"))}


def is_pretrained(path: str | Path) -> bool:
    """Whether this names a model of the package, and not a folder."""
    return str(path).startswith(PREFIX)


def named_folder(path: str | Path) -> Path:
    """The folder that a path names, or ``pretrained:NAME``."""
    if not is_pretrained(path):
        return Path(path)
    name, known = str(path).removeprefix(PREFIX), pretrained()
    if name not in known:
        raise PretrainedError(f"there is no {path}; known are {', '.join(known)}")
    return known[name]


def model_folder(path: str | Path) -> Path:
    """The folder of the saved model: by itself, or in a run folder."""
    folder = named_folder(path)
    is_run = (folder / "model").is_dir() and not (folder / "config.json").exists()
    return folder / "model" if is_run else folder
