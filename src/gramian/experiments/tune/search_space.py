"""What a search may change: settings by their dotted names, with ranges from their types."""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from gramian.nn.dense_dkm import DenseDKMConfig
from gramian.train.config import ConfigError, TrainConfig

if TYPE_CHECKING:
    import optuna

SIZES = ("batch_size", "model.num_inducing")  # that never go beyond the training set
WIDE = 5.0  # a number is searched between its value divided and multiplied by this
DEFAULTS = {
    "conv": ("lr", "batch_size", "model.nu", "model.skr.jitter", "model.skr.gamma_fraction"),
    "dense": ("lr", "batch_size", "model.nu", "model.num_inducing", "model.num_layers"),
    "network": ("lr", "batch_size", "weight_decay"),
}
"""What is searched unless somebody says otherwise, by the kind of model."""


@dataclass(frozen=True)
class Dimension:
    """One setting and its values: a range of numbers, or a choice.

    Args:
        name: dotted.
        low, high: of a range.
        whole: whether its numbers are integers.
        log: whether its logarithm is drawn evenly.
        choices: instead of a range, as YAML, which a database can hold.
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    log: bool = False
    choices: tuple[str, ...] = ()

    def suggest(self, trial: optuna.Trial) -> Any:
        """A value for a trial."""
        if self.choices:
            return yaml.safe_load(trial.suggest_categorical(self.name, self.choices))
        if self.whole:
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)

    def stored(self, value: Any) -> Any:
        """A value as the database holds it; None if it lies outside."""
        if self.choices:
            text = as_yaml(value)
            return text if text in self.choices else None
        return value if value is not None and self.low <= value <= self.high else None

    def __str__(self) -> str:
        if self.choices:
            return f"{self.name}: {', '.join(self.choices)}"
        return f"{self.name}: {self.low:g} to {self.high:g}" + " (log)" * self.log


def bounded(config: TrainConfig, num_data: int) -> TrainConfig:
    """The same settings, with sizes of at most all training points."""
    model: Any = config.model
    if isinstance(config.model, DenseDKMConfig):
        model = replace(config.model, num_inducing=min(config.model.num_inducing, num_data))
    return replace(config, batch_size=min(config.batch_size, num_data), model=model)


def search_space(
    config: TrainConfig, words: Sequence[str], num_data: int | None = None
) -> list[Dimension]:
    """The dimensions that words describe: ``lr``, ``lr=0.003:0.1`` or ``model.kernel=a,b``."""
    words = words or [name for name in DEFAULTS[config.kind] if has_range(value_of(config, name))]
    space = [dimension(config, word, num_data) for word in words]
    names = [each.name for each in space]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--search {name} is there twice")
    return space


def dimension(config: TrainConfig, word: str, num_data: int | None = None) -> Dimension:
    """The dimension of one word; without values, by the type and the value of the setting.

    Sizes go up to ``num_data``, the training points.
    """
    name, _, text = word.partition("=")
    kind, value = type_of(config, name), value_of(config, name)
    parts = [part for part in get_args(kind) or (kind,) if part is not type(None)]
    whole = int in parts and float not in parts
    if ":" in text:
        return _range(name, text, whole)
    if text:
        return Dimension(name, choices=tuple(as_yaml(yaml.safe_load(v)) for v in text.split(",")))
    if kind is bool:
        return Dimension(name, choices=("false", "true"))
    literals = [v for part in (kind, *parts) if get_origin(part) is Literal for v in get_args(part)]
    if literals:
        return Dimension(name, choices=tuple(map(as_yaml, dict.fromkeys(literals))))
    if not has_range(value):
        raise ConfigError(
            f"--search {name}: say which values, as {name}=LOW:HIGH or {name}=A,B (it is {value})"
        )
    low, high = value / WIDE, value * WIDE
    if num_data is not None and name in SIZES:
        high = min(high, num_data)
    if whole:
        low, high = float(max(1, round(low))), float(max(2, round(high)))
    return Dimension(name, low, high, whole, log=True)


def has_range(value: Any) -> bool:
    """Whether numbers around it can be tried: of nothing, 0 and infinity there are none."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < math.inf


def _range(name: str, text: str, whole: bool) -> Dimension:
    """LOW:HIGH; numbers of different sizes are drawn by their logarithm."""
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise ConfigError(f"--search {name}: a range is LOW:HIGH, got {text}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"--search {name}: LOW must be less than HIGH, got {text}")
    return Dimension(name, low, high, whole, log=low > 0 and high / low >= 10)


def value_of(config: Any, name: str) -> Any:
    """The value of a setting by its dotted name."""
    for part in name.split("."):
        if not is_dataclass(config) or not hasattr(config, part):
            raise ConfigError(f"--search {name}: there is no such setting (gramian train --help)")
        config = getattr(config, part)
    return config


def type_of(config: Any, name: str) -> Any:
    """The type of a setting by its dotted name; a union as one."""
    value_of(config, name)
    *path, last = name.split(".")
    for part in path:
        config = getattr(config, part)
    kind = get_type_hints(type(config))[last]
    return Union[get_args(kind)] if isinstance(kind, types.UnionType) else kind  # noqa: UP007


def as_yaml(value: Any) -> str:
    """One value in one line."""
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=math.inf).split("\n")[0]
