"""Checks of settings. PyTorch is not imported, so that a refusal is quick."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

POSITIVE = {
    *("accumulate", "batch_size", "devices", "evaluate_every", "lr", "max_epochs", "num_nodes"),
    *("patience", "train_size", "bias_var", "gamma_fraction", "image_shape", "noise_var"),
    *("num_features", "num_inducing", "num_samples", "start", "stem_stride", "strides"),
    *("weight_var", "widths"),
}
NOT_NEGATIVE = {
    *("checkpoint_minutes", "crop_padding", "max_numerical_errors", "seed", "split_seed"),
    *("weight_decay", "gram", "inputs", "mixing", "output", "scales"),
    *("absolute", "blocks_per_stage", "jitter", "num_layers", "relative"),
}
"""What settings must be, by their names."""
MOST_LAYERS = 400
AT_MOST = {"num_samples": 100_000, "num_layers": MOST_LAYERS, "image_shape": 100_000_000}
"""Bounds of what no tensor of a saved model need have, by name; of several numbers, in all."""

Numbers = float | int | Sequence[float | int]


def check_positive(**settings: Numbers | None) -> None:
    """Raise unless every setting that is not None holds positive, finite numbers."""
    for name, value in settings.items():
        numbers = _numbers(value)
        if value is not None and not (numbers and all(0 < number < math.inf for number in numbers)):
            raise ValueError(f"{name} must be positive, got {value}")


def check_not_negative(**settings: Numbers | None) -> None:
    """Raise unless every setting that is not None holds finite numbers of 0 or more."""
    for name, value in settings.items():
        numbers = _numbers(value)
        if value is not None and not all(0 <= number < math.inf for number in numbers):
            raise ValueError(f"{name} must be 0 or more, got {value}")


def check_at_most(limit: int, **settings: Numbers) -> None:
    """Raise if a setting, or the product of its numbers, is larger than ``limit``."""
    for name, value in settings.items():
        if math.prod(_numbers(value)) > limit:
            raise ValueError(f"{name} must be at most {limit:,} in all, got {value}")


def check_ranges(settings: Mapping[str, Any]) -> None:
    """Raise where a setting is out of the range that belongs to (the last part of) its name."""
    for name, value in settings.items():
        last = name.rpartition(".")[2]
        if last in POSITIVE:
            check_positive(**{name: value})
        elif last in NOT_NEGATIVE:
            check_not_negative(**{name: value})
        elif last == "nu" and not value >= 0:
            raise ValueError(f"{name} must be 0 or more, or inf, got {value}")
        if last in AT_MOST:
            check_at_most(AT_MOST[last], **{name: value})


def check_choices(settings: object) -> None:
    """Raise where a setting (a field of a dataclass) is not of its type, or no word of its list."""
    for name, kind in get_type_hints(type(settings)).items():
        value, parts = getattr(settings, name), get_args(kind) or (kind,)
        if get_origin(kind) is Literal or get_origin(kind) is tuple:
            parts = (kind,)
        words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
        if words and isinstance(value, str) and str not in parts and value not in words:
            raise ValueError(f"{name} must be {_listed(words, parts)}, got {value!r}")
        expected = _expected(parts, value)
        if value is not None and expected and not words:
            raise ValueError(f"{name} must be {expected}, got {value!r}")


def _expected(parts: Sequence[Any], value: object) -> str:
    """What a value should be that is none of its types; nothing if it is, or they are others."""
    if any(get_origin(part) is tuple for part in parts):
        return "" if isinstance(value, tuple | list) else "a tuple"
    if isinstance(parts[0], type) and is_dataclass(parts[0]):
        return "" if is_dataclass(value) else f"a {parts[0].__name__}"
    if float in parts:
        return "" if isinstance(value, Real) else "a number"
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return "an integer" if int in parts and not whole else ""


def _listed(words: Sequence[object], parts: Sequence[object]) -> str:
    """Choices in words: true, false, mirrored or patches."""
    every = (["true", "false"] if bool in parts else []) + [str(word) for word in words]
    return f"{', '.join(every[:-1])} or {every[-1]}" if len(every) > 1 else every[0]


def _numbers(value: Numbers | None) -> Sequence[float | int]:
    return () if value is None else value if isinstance(value, Sequence) else (value,)
