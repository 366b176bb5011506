"""All settings of a training run, with the published values as defaults where there are any."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

import torch

from gramian.nn.baseline.network import Network, NetworkConfig
from gramian.nn.contract import Trainable
from gramian.nn.conv_dkm import ConvDKM, ConvDKMConfig
from gramian.nn.dense_dkm import DenseDKM, DenseDKMConfig
from gramian.nn.parameters import start_in_
from gramian.nn.setting_checks import MOST_LAYERS
from gramian.train.run_settings import ConfigError as ConfigError
from gramian.train.run_settings import Kind as Kind
from gramian.train.run_settings import LRFactors as LRFactors
from gramian.train.run_settings import RunSettings

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

Settings = TypeVar("Settings")
ModelConfig = ConvDKMConfig | DenseDKMConfig | NetworkConfig
MODEL_CONFIGS: dict[str, type[ModelConfig]] = {
    "conv": ConvDKMConfig,
    "dense": DenseDKMConfig,
    "network": NetworkConfig,
}


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunSettings):
    """One training run.

    Args (besides those of RunSettings):
        model: settings of the model, of the class that belongs to ``kind``.
    """

    model: ModelConfig = field(default_factory=ConvDKMConfig)

    def __post_init__(self) -> None:
        """Refuse settings that do not fit together."""
        super().__post_init__()
        if not isinstance(self.model, MODEL_CONFIGS[self.kind]):
            raise ConfigError(f"kind {self.kind} needs a {MODEL_CONFIGS[self.kind].__name__}")
        model = self.model
        if self.natural and not (
            isinstance(model, DenseDKMConfig) and model.divergence == "exact" and not model.tempered
        ):
            raise ConfigError(
                "natural gradients are for dense models with model.divergence exact and "
                "model.tempered false"
            )

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for YAML and JSON."""
        return _plain(asdict(self))


def build_model(config: ModelConfig, dtype: torch.dtype = torch.float32) -> Trainable:
    """The model that a model configuration describes."""
    model: Trainable
    if isinstance(config, ConvDKMConfig):
        model = ConvDKM.from_config(config)
    elif isinstance(config, DenseDKMConfig):
        model = DenseDKM.from_config(config)
    elif isinstance(config, NetworkConfig):
        model = Network(config)
    else:
        raise ConfigError(f"no model is known for a {type(config).__name__}")
    start_in_(model, dtype)
    return model


def model_config_to_dict(config: ModelConfig) -> dict[str, Any]:
    """A model configuration as plain values, with its kind."""
    kind = next(kind for kind, known in MODEL_CONFIGS.items() if isinstance(config, known))
    return {"kind": kind, **_plain(asdict(config))}


def model_config_from_dict(values: Mapping[str, Any]) -> ModelConfig:
    """The inverse of ``model_config_to_dict``; every value is checked against its type."""
    rest = dict(values)
    kind = _known_kind(rest.pop("kind", None))
    return settings_from_dict(MODEL_CONFIGS[kind], rest, f"a {kind} model")


def config_from_dict(values: Mapping[str, Any]) -> TrainConfig:
    """The inverse of ``TrainConfig.to_dict``; what is not given has its default."""
    kind = _known_kind(values.get("kind", "conv"))
    check_settings(values, kind)
    built = _instantiate("a training run", values, MODEL_CONFIGS[kind], True)
    return TrainConfig(**vars(built))


def settings_from_dict(kind: type[Settings], values: Mapping[str, Any], what: str) -> Settings:
    """Settings of a dataclass from plain values, each checked against its type."""
    check_fields(values, get_type_hints(kind))
    built: Settings = _instantiate(what, {"model": values}, kind, False).model
    return built


def check_settings(
    values: Mapping[str, Any], kind: str, others: Collection[str] = (), path: str = ""
) -> None:
    """Refuse values of a file that are no settings of a training run, nor one of ``others``."""
    types = dict.fromkeys(others, object) | get_type_hints(TrainConfig)
    check_fields(values, types | {"model": MODEL_CONFIGS[kind]}, path)


def check_fields(values: Mapping[str, Any], types: Mapping[str, Any], path: str = "") -> None:
    """Refuse names that are no fields, null without a meaning, long lists, and groups of no names.

    jsonargparse takes a string for the name of a file, and imports what a ``class_path`` names.
    """
    for name, value in values.items():
        group, _, inner = str(name).partition(".")
        if group not in types:
            raise ConfigError(f"there is no setting {path}{name}")
        if inner:  # jsonargparse takes names with dots, too
            check_fields({group: {inner: value}}, types, path)
            continue
        kind = types[group]
        if isinstance(value, list) and len(value) > MOST_LAYERS:
            raise ConfigError(f"{path}{name} holds {len(value):,} values, more than {MOST_LAYERS}")
        if is_dataclass(kind):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{path}{name} must hold settings by name, got {value!r}")
            check_fields(value, get_type_hints(kind), f"{path}{name}.")
        elif value is None and kind is not object and type(None) not in get_args(kind):
            raise ConfigError(f"{path}{name} must not be null")


def _known_kind(kind: Any) -> str:
    if kind not in list(MODEL_CONFIGS):
        raise ConfigError(f"unknown kind of model {kind!r}; known are {sorted(MODEL_CONFIGS)}")
    return str(kind)


def _instantiate(what: str, values: Mapping[str, Any], kind: type, whole: bool) -> Any:
    parser = _parser(kind, whole)
    try:
        return parser.instantiate(parser.parse_object(dict(values)))
    except Exception as error:
        raise ConfigError(f"not a configuration of {what}: {error}") from error


@cache
def _parser(kind: type, whole: bool) -> ArgumentParser:
    """A parser for a model's settings, with those of a training run if ``whole``."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    if whole:
        parser.add_class_arguments(RunSettings, None, as_group=False)
    parser.add_class_arguments(kind, "model")
    return parser


def _plain(value: Any) -> Any:
    """Tuples as lists, in nested dictionaries."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
