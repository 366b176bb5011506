"""Files that are either there and whole, or not there."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any

import psutil

MOST_VALUES = 100_000
"""In a file of settings."""


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let ``write`` fill a temporary file, flush it to the disk, then rename it to ``path``.

    Whatever happens on the way (full disk, kill), ``path`` is the old file or the new one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is None:
            raise
        reason = f"cannot write, what was there before is unchanged: {error.strerror}"
        raise OSError(error.errno, reason, str(path)) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_text_atomically(path: Path, text: str) -> None:
    """The same for a text."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json_atomically(path: Path, value: object) -> None:
    """The same for a value as JSON."""
    write_text_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def check_values(value: Any) -> None:
    """Refuse a nested value from a file that names its parts again and again, as YAML can.

    A kilobyte of aliases may stand for more values than fit in any memory.
    """
    sizes: dict[int, int] = {}
    size = _size(value, sizes)
    if size > MOST_VALUES:
        raise ValueError(f"it stands for {size:.2g} values, more than {MOST_VALUES:,}")


def _size(value: Any, sizes: dict[int, int]) -> int:
    """How many values a nested one would be without sharing."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in sizes:
        sizes[id(value)] = 10**18  # until it is known: what holds itself is endless
        inner = value.values() if isinstance(value, dict) else value
        sizes[id(value)] = 1 + sum(_size(one, sizes) for one in inner)
    return sizes[id(value)]


def remove_dead_parts(path: Path) -> None:
    """Remove temporary files of ``write_atomically`` whose writer was killed.

    ``path`` is what they were to become; its name may be a pattern.
    """
    for part in path.parent.glob(f".{path.name}.*.part"):
        name, _, process = part.name.removesuffix(".part").rpartition(".")
        ours = fnmatchcase(name, f".{path.name}") and process.isdecimal()
        if ours and not psutil.pid_exists(int(process)):
            part.unlink(missing_ok=True)


def move(source: Path, target: Path) -> None:
    """Move a file, also to another disk: ``target`` is the old file or the new one."""
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with source.open("rb") as file:
            write_atomically(target, lambda new: shutil.copyfileobj(file, new))
        source.unlink()


def in_one_line(error: BaseException) -> str:
    """The whole message of an error; that of a KeyError is only the key."""
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return f"it lacks {text}" if isinstance(error, KeyError) else text or type(error).__name__
