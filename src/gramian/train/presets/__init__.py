"""Configurations that come with the package, as YAML files."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from gramian.train.config import TrainConfig


def presets() -> dict[str, Path]:
    """The files, by name."""
    folder = resources.files(__name__)
    paths = (Path(str(path)) for path in folder.iterdir() if path.name.endswith(".yaml"))
    return {path.stem: path for path in sorted(paths)}


def preset_config(name: str) -> TrainConfig:
    """The configuration of a preset as it is."""
    from gramian.train.config import ConfigError, config_from_dict  # loads PyTorch

    known = presets()
    if name not in known:
        raise ConfigError(f"unknown preset {name!r}; known are {', '.join(known)}")
    return config_from_dict(yaml.safe_load(known[name].read_text()))
