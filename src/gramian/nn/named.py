"""Parts of a model by name: ours, or custom ones by import path."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def find(what: str, name: str, table: Mapping[str, type[T]], base: type) -> type[T]:
    """The class that a setting names: an entry of ``table``, or ``module.Class``.

    A file that names a module must not make it run, so nothing is imported here: whoever wants a
    custom part imports its module first.

    Args:
        what: what is looked for, for messages.
        name: the name, or the import path.
        table: the names that are known.
        base: what a custom class must be a subclass of.

    Raises:
        ValueError: no such name, a module that is not imported, or something else in its place.
    """
    if name in table:
        return table[name]
    path, dot, last = name.rpartition(".")
    if not dot:
        known = ", ".join(sorted(table))
        raise ValueError(
            f"unknown {what} {name!r}; known are {known}, or module.Class for a custom one"
        )
    module = sys.modules.get(path)
    if module is None:
        raise ValueError(
            f"the {what} {name} is in the module {path}, which is not imported: import it first "
            f"(the program: --import {path})"
        )
    found = getattr(module, last, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"{name} is no {what}: it must be a subclass of {base.__name__}")
    return found  # type: ignore[return-value]


def path_of(cls: type, table: Mapping[str, type]) -> str:
    """The name that ``find`` takes for a class."""
    known = {entry: name for name, entry in table.items()}
    return known.get(cls) or f"{cls.__module__}.{cls.__qualname__}"
