"""Files that are either there and whole, or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO


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
    finally:
        temporary.unlink(missing_ok=True)


def write_text_atomically(path: Path, text: str) -> None:
    """The same for a text."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json_atomically(path: Path, value: object) -> None:
    """The same for a value as JSON."""
    write_text_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
