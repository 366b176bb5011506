"""Names from files, as they may reach a terminal or a spreadsheet. Nothing heavy is imported."""

from __future__ import annotations

import re
import sys

UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, other ends of lines, changes of direction, and halves of characters."""


def printable(text: str, keep: str = "") -> str:
    r"""A text with control characters as escapes such as ``\x1b``, but for those to ``keep``."""

    def escaped(found: re.Match[str]) -> str:
        return found[0] if found[0] in keep else ascii(found[0])[1:-1]

    return UNPRINTABLE.sub(escaped, text)


def say(text: str) -> None:
    """Write lines for people to standard output."""
    sys.stdout.write(printable(text, keep="\n\t"))


def csv_cell(value: object) -> object:
    """A cell that no spreadsheet takes for a formula; numbers are left as they are."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
