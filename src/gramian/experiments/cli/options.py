"""Command-line options from typed dataclasses, files and the environment."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace

from gramian.train.config import MODEL_CONFIGS, ConfigError, TrainConfig, add_train_arguments
from gramian.train.presets import presets


def train_parser(words: Sequence[str]) -> ArgumentParser:
    """The parser of ``gramian train``, for the kind of model and the preset that ``words`` name."""
    preset, kind = _peek(words)
    parser = ArgumentParser(
        prog="gramian train",
        allow_abbrev=False,
        description="Train a model. Without options: handwritten digits.",
        default_env=True,
        env_prefix="GRAMIAN_TRAIN_",
        default_config_files=[str(preset)] if preset else [],
    )
    parser.add_argument("--config", action="config", help="YAML file with options")
    parser.add_argument(
        "--preset",
        default="auto",
        help=f"options that come with the package: {', '.join(presets())}; auto takes the one with "
        "the data set's name, none takes none",
    )
    add_train_arguments(parser)
    parser.add_class_arguments(MODEL_CONFIGS[kind], "model")
    parser.add_argument("--output", default="runs", help="folder of all runs")
    parser.add_argument("--name", type=str | None, default=None, help="name of this run's folder")
    parser.add_argument(
        "--resume", default="auto", help="auto: go on if the run's folder has a checkpoint; never"
    )
    parser.add_argument("--plots", type=bool, default=True, help="draw plots after training")
    parser.add_argument("--tensorboard", type=bool, default=False, help="write TensorBoard events")
    parser.add_argument("--dry_run", action="store_true", help="say what would be done, and stop")
    add_common_options(parser)
    return parser


def add_common_options(parser: ArgumentParser) -> None:
    """Options of every command."""
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress and no notes")
    parser.add_argument("--verbose", action="store_true", help="tracebacks with errors")


def train_config(parser: ArgumentParser, options: Namespace) -> TrainConfig:
    """The configuration that parsed options describe."""
    names = set(TrainConfig.__dataclass_fields__)
    try:
        built = vars(parser.instantiate(options))
        return TrainConfig(**{key: value for key, value in built.items() if key in names})
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _peek(words: Sequence[str]) -> tuple[Path | None, str]:
    """The preset and the kind of model, which decide what the other options are."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("preset", "data", "kind", "config"):
        parser.add_argument(f"--{name}", default=os.environ.get(f"GRAMIAN_TRAIN__{name.upper()}"))
    given, _ = parser.parse_known_args([word for word in words if word != "--print_config"])
    values: dict[str, Any] = {}
    if given.config:
        try:
            values = yaml.safe_load(Path(given.config).read_text()) or {}
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"--config {given.config} cannot be read: {error}") from error
    data = given.data or values.get("data")
    name = given.preset or values.get("preset") or "auto"
    known = presets()
    if name == "auto":
        name = data if data in known else ("digits" if data is None and not values else "none")
        if name != "none" and given.kind not in (None, _kind_of(known[name])):
            name = "none"  # a preset for another kind of model
    if name != "none" and name not in known:
        raise ConfigError(f"unknown preset {name!r}; known are {', '.join(known)}")
    preset = None if name == "none" else known[name]
    kind = given.kind or values.get("kind")
    if kind is None:
        kind = _kind_of(preset) if preset else "conv"
    if kind not in MODEL_CONFIGS:
        raise ConfigError(f"unknown kind {kind!r}; known are {', '.join(MODEL_CONFIGS)}")
    return preset, kind


def _kind_of(preset: Path) -> str:
    kind: str = yaml.safe_load(preset.read_text()).get("kind", "conv")
    return kind
