"""What the options of all commands have in common. Nothing heavy is imported, so help is quick."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from jsonargparse import ArgumentParser


class UsageError(ValueError):
    """A command that cannot be understood."""

    exit_code = 2


class Parser(ArgumentParser):
    """A parser whose errors are one line that names the option and the value."""

    def __init__(self, command: str, description: str, **more: Any) -> None:
        prog = f"gramian {command}"
        super().__init__(prog=prog, description=description, allow_abbrev=False, **more)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise what jsonargparse would print after the usage of every option."""
        words = re.match(r"unrecognized arguments: (.*)", message)
        if words:
            raise unknown_option(words[1].split()[0], self._option_string_actions) from ex
        raise UsageError(on_one_line(message)) from ex


def unknown_option(word: str, known: Iterable[str]) -> UsageError:
    """The error for a word that is no option, with the option that looks most like it."""
    name = word.partition("=")[0]
    close = difflib.get_close_matches(name, [option for option in known if option != "-h"], n=1)
    return UsageError(f"unknown option {name}" + (f"; did you mean {close[0]}?" if close else ""))


def on_one_line(message: str) -> str:
    """An error of jsonargparse or YAML, in the words of the command line."""
    text = " ".join(message.split())
    text = re.sub(r'(?:Parser )?[Kk]ey "([\w.]+)":?', r"--\1:", text)
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text).replace("NoneType", "null")
    union = r"Does not validate against any of the Union subtypes Subtypes: \[(.*?)\].*Given value:"
    text = re.sub(union, r"Expected one of \1. Got value:", text)
    text = re.sub(r"[Ee]xpected an? (.*?)\. Got value: ", r"expected \1, got ", text)
    return re.sub(r"Expected one of (.*?)\. Got value: ", r"expected one of \1, got ", text)


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
