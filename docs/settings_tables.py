"""The settings as tables, from the dataclasses and the sentences of their docstrings.

``conf.py`` puts them into those docstrings, in the place of the arguments.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import gramian
from gramian.experiments.cli.train_options import descriptions
from gramian.train.config import MODEL_CONFIGS, TrainConfig


def settings_classes() -> list[type]:
    """Every dataclass of settings: those of a run and of models, and those inside them."""
    found: list[type] = [TrainConfig, *MODEL_CONFIGS.values(), gramian.FullRankConfig]
    for settings in found:
        for hint in get_type_hints(settings).values():
            inner = [part for part in (hint, *get_args(hint)) if is_dataclass(part)]
            found += [part for part in inner if part not in found]
    return found


def settings_table(settings: type) -> list[str]:
    """A row for each field of a dataclass, as reStructuredText: those of its own come first."""
    hints, sentences = get_type_hints(settings), descriptions(settings)
    known = {field.name: field for field in fields(settings)}
    lines = [".. container:: options", "", "   .. list-table::", "      :header-rows: 1"]
    lines += ["      :widths: 20 20 15 45", ""]
    rows = [["Field", "Type", "Default", "Meaning"]]
    for name in sorted(known, key=[*sentences, *known].index):
        sentence = re.sub(r"([\\`*|_])", r"\\\1", sentences[name])
        rows.append([f"``{name}``", type_text(hints[name]), default_text(known[name]), sentence])
    for row in rows:
        lines += [f"      {'* -' if not n else '  -'} {cell}" for n, cell in enumerate(row)]
    return [*lines, ""]


def type_text(hint: Any) -> str:
    """A type, with the values of a choice, and links to other settings."""
    if get_origin(hint) is Literal:
        return " or ".join(f'``"{value}"``' for value in get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(type_text, get_args(hint)))
    if is_dataclass(hint):
        name = getattr(hint, "__name__", "")
        path = "gramian" if name in gramian.__all__ else getattr(hint, "__module__", "")
        return f":py:class:`~{path}.{name}`"
    if hint is NoneType:
        return "``None``"
    return f"``{hint if get_args(hint) else hint.__name__}``"


def default_text(field: Field[Any]) -> str:
    """As Python writes it, numbers with three digits."""
    value = field.default if field.default is not MISSING else field.default_factory()
    return f"``{python(value)}``"


def python(value: Any) -> str:
    """An expression."""
    if is_dataclass(value):
        kind = type(value)
        forms = {f"{kind.__name__}()": kind, f"{kind.__name__}.off()": getattr(kind, "off", kind)}
        return next((text for text, make in forms.items() if make() == value), repr(value))
    if isinstance(value, tuple):
        inside = ", ".join(map(python, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return f"{value:.3g}" if isinstance(value, float) else repr(value)
