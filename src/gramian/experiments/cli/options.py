"""What the options of all commands have in common. Nothing heavy is imported, so help is quick."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from gramian._version import __version__
from gramian.explained import Explained

REWORDED = (
    (r"tuple\[(\w+)(?:, (?:\.\.\.|\w+))*\]", r"a list of \1"),
    (r"(?:typing\.)?Literal\[(.*?)\]", r"one of \1"),
    (r'(?:Parser )?[Kk]ey "([\w.]+)":?', r"--\1:"),
    (r"<class '(?:\w+\.)*(\w+)'>", r"\1"),
    (r"NoneType", "null"),
    (
        r"Does not validate against any.* Subtypes: \[(.*?)\] Errors:.* Given value:",
        r"expected \1, got",
    ),
    (r"[Ee]xpected an? (.*?)\. Got value:", r"expected \1, got"),
    (r"Not of type (\w+): (?:invalid .*: )?(.*?)(?: does not .*)?$", r"expected \1, got \2"),
    (r"\bPositiveInt\b", "a positive integer"),
    (r"\bNonNegativeInt\b", "an integer of 0 or more"),
    (r"(?<=[\w']), null, got", " or null, got"),
    (r"argument (--\w+): ignored explicit argument '(.*)'", r"\1 takes no value, got \2"),
    (r"expected tuple, got ([^\[].*)", r"expected a list such as '[\1]', got \1"),
)
"""What jsonargparse says, and what we say."""


class UsageError(Explained, ValueError):
    """A command that cannot be understood."""

    exit_code = 2


class Parser(ArgumentParser):
    """A parser whose errors are one line that names the option and the value."""

    def __init__(
        self, command: str, description: str, program: str = "gramian", **more: Any
    ) -> None:
        prog = f"{program} {command}"
        super().__init__(prog=prog, description=description, allow_abbrev=False, **more)

    def parse_args(self, words: Sequence[str], **more: Any) -> Namespace:  # type: ignore[override]
        """As usual, with plain integers: YAML cannot write those of PositiveInt."""
        known = self._option_string_actions
        for word, value in pairwise(words):
            if value in ("true", "false") and word in known and known[word].nargs == 0:
                raise UsageError(
                    f"{word} takes no value, got {value}: give it alone, or leave it out"
                )
        options = super().parse_args(words, **more)
        for key, value in list(options.items()):
            if isinstance(value, PositiveInt | NonNegativeInt):
                options[key] = int(value)
        return options

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise what jsonargparse would print after the usage of every option."""
        words = re.match(r"unrecognized arguments: (.*)", message)
        if words:
            raise unknown_option(words[1].split()[0], self._option_string_actions) from ex
        raise UsageError(on_one_line(message)) from ex


def unknown_option(word: str, known: Iterable[str]) -> UsageError:
    """The error for a word that is no option, with the option that looks most like it."""
    name = word.partition("=")[0]
    if not name.startswith("-"):
        return UsageError(
            f"unexpected word {word!r}: options begin with --, a value with spaces needs quotation "
            "marks"
        )
    close = difflib.get_close_matches(name, [option for option in known if option != "-h"], n=1)
    return UsageError(f"unknown option {name}" + (f"; did you mean {close[0]}?" if close else ""))


def on_one_line(message: str) -> str:
    """An error of jsonargparse or YAML, in the words of the command line."""
    text = " ".join(message.split())
    for pattern, words in REWORDED:
        text = re.sub(pattern, words, text)
    return text


def announce(command: str) -> None:
    """The first line of long work, from the first of several processes."""
    if os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0":
        logging.getLogger("gramian").info("gramian %s: %s", __version__, command)


def add_common_options(parser: ArgumentParser) -> None:
    """Options of every command."""
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress and no notes")
    parser.add_argument("--verbose", action="store_true", help="tracebacks with errors")


def import_modules(names: Sequence[str]) -> None:
    """Import modules that the user named, from the current folder as well, as ``python -m`` does.

    Raises:
        UsageError: there is no such module, or it cannot be imported.
    """
    if names and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # a module of the user's can raise anything
            reason = f"{type(error).__name__}: {error}"
            raise UsageError(
                f"--import {name}: the module cannot be imported ({reason})"
            ) from error
