"""``gramian help``: what an error means and what to do, from docs/ERRORS.md."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gramian.experiments.cli.options import Parser, UsageError, add_common_options
from gramian.explained import address


class Entry(NamedTuple):
    """A message of the page, with … for its values, and what to do if the page says more."""

    section: str
    message: str
    answer: str


def run(words: Sequence[str]) -> None:
    """Print a section, or the entry that fits a pasted message."""
    options = help_parser().parse_args(list(words))
    asked, text = " ".join(options.words), page()
    sections = sections_of(text)
    if not asked:
        names = ", ".join(sections)
        sys.stdout.write(json.dumps(list(sections)) if options.json else f"sections: {names}")
        sys.stdout.write("\n")
        return
    by_anchor = {name.lower(): name for name in sections}
    entry = None
    if asked.lower() not in by_anchor:
        entry = best_entry(asked, entries_of(text))
        if entry is None:
            raise UsageError(f"no section and no message like {asked!r}; gramian help lists them")
    section = entry.section if entry else by_anchor[asked.lower()]
    found = {
        "section": section,
        "address": address(section),
        "message": entry.message if entry else None,
        "answer": entry.answer if entry else None,
        "text": sections[section],
    }
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    about = sections[section].partition("\n|")[0] if entry else sections[section]
    sys.stdout.write(f"{section}\n\n")
    if entry:
        sys.stdout.write(f"{entry.message}\n  {entry.answer or 'The message says what to do.'}\n\n")
    sys.stdout.write(f"{about.strip()}\n")


FEWEST = 15
"""Characters of a message, without values, that are enough to know it by."""


def help_parser() -> Parser:
    """The options."""
    parser = Parser("help", "What an error means, and what to do.")
    parser.add_argument(
        "words", nargs="*", help="a section, such as notpsderror, or a message, pasted in quotes"
    )
    add_common_options(parser)
    return parser


def page() -> str:
    """The page: beside this file in an installation, in docs/ in a working copy."""
    installed = Path(__file__).with_name("ERRORS.md")
    source = Path(__file__).parents[5] / "docs" / "ERRORS.md"
    return (installed if installed.exists() else source).read_text(encoding="utf-8")


def sections_of(text: str) -> dict[str, str]:
    """The text of each section by its name."""
    parts = re.split(r"^### (\w+)\n", text, flags=re.MULTILINE)
    bodies = (re.split(r"^## ", body, flags=re.MULTILINE)[0].strip() for body in parts[2::2])
    return dict(zip(parts[1::2], bodies, strict=True))


def entries_of(text: str) -> list[Entry]:
    """All messages: rows of tables, and items of lists."""
    found = []
    for section, body in sections_of(text).items():
        for line in body.splitlines():
            match = re.match(r"(?:\||-) (?:``(.+?)``|`(.+?)`)(?: \| (.*) \|)?$", line)
            if match:
                found.append(Entry(section, (match[1] or match[2]).strip(), match[3] or ""))
    return found


def best_entry(pasted: str, entries: Sequence[Entry]) -> Entry | None:
    """The message with the most words of its own that the pasted text contains, or begins."""
    text = " ".join(pasted.split())
    fitting = [entry for entry in entries if pattern(entry.message).search(text)]
    if not fitting:
        common = {len(beginning(entry.message, text)): entry for entry in reversed(entries)}
        return common[max(common)] if max(common) >= FEWEST else None
    return max(fitting, key=lambda entry: len(entry.message.replace("…", "")))


def beginning(message: str, text: str) -> str:
    """What the end of a text has of a message that was not pasted to its end."""
    words = message.split()
    for count in range(len(words) - 1, 0, -1):
        some = " ".join(words[:count]).rstrip(",:;")
        if len(some) >= FEWEST and re.search(f"{pattern(some).pattern}$", text):
            return some.replace("…", "")
    return ""


def pattern(message: str) -> re.Pattern[str]:
    """An expression for all texts that a message can be."""
    return re.compile(".*?".join(re.escape(part) for part in message.split("…")))
