"""The options of every command as tables, from the parsers that the program itself has.

``conf.py`` puts them where ``reference/commands.md`` has ``OPTIONS``.
"""

from __future__ import annotations

import importlib
import json
import re
from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Iterable
from typing import Any

from gramian.experiments.cli.main import COMMANDS, EXIT_CODES
from gramian.experiments.cli.train_options import train_parser
from gramian.train.config import MODEL_CONFIGS

OPTIONS = "<!-- options -->"
KINDS = "Where a default names a `--kind`, the others have another one, or no such option."


def commands_text() -> str:
    """A section for each command: what it does, its usage and its options; then exit codes."""
    lines: list[str] = []
    for name in COMMANDS:
        parser = parser_of(name)
        usage = " ".join(["gramian", name, *arguments(parser), "[options]"])
        lines += [f"## {name}", "", described(parser), "", "```text", usage, "```", ""]
        lines += option_table({"": parser}, skip="--model")
        if name == "train":
            parsers = {kind: train_parser(kind, environment=False) for kind in MODEL_CONFIGS}
            lines += ["### Options of the model", "", KINDS, ""]
            lines += option_table(parsers, only="--model")
    codes = [[f"{code}", text] for code, text in EXIT_CODES.items()]
    return "\n".join([*lines, "## Exit codes", "", *markdown(["Code", "Meaning"], codes), ""])


def parser_of(name: str) -> ArgumentParser:
    """The parser of a command; of train, that of its default kind of model."""
    if name == "train":
        return train_parser("conv", environment=False)
    module = importlib.import_module(f"gramian.experiments.cli.commands.{name}")
    parser: ArgumentParser = getattr(module, f"{name}_parser")()
    return parser


def described(parser: ArgumentParser) -> str:
    """What a command does; of train, without the kind of model that its help is about."""
    return escaped(re.sub(r"These are [^;]*; ", "", str(parser.description)))


def option_table(
    parsers: dict[str, ArgumentParser], only: str = "", skip: str | None = None
) -> list[str]:
    """A row for each option that starts with ``only``; its defaults by the kind of model."""
    rows: dict[tuple[str, str], dict[str, list[str]]] = {}
    for kind, parser in parsers.items():
        for action in shown(parser):
            name = option(action)
            if name.startswith(only) and not (skip and name.startswith(skip)):
                row = rows.setdefault((name, meaning(action)), {})
                row.setdefault(default(action), []).append(kind)
    order = [name for name, _ in rows]
    cells = []
    for name, text in sorted(rows, key=lambda key: order.index(key[0])):  # the same name together
        found = rows[name, text]
        values = [
            value if len(kinds) == len(parsers) or value == "–" else f"{', '.join(kinds)}: {value}"
            for value, kinds in found.items()
        ]
        cells.append([f"`{name}`", text, "<br>".join(values)])
    table = markdown(["Option", "Meaning", "Default"], cells)
    return [":::{container} options", *table, ":::", ""]


def shown(parser: ArgumentParser) -> list[Action]:
    """Arguments, then options, but for help."""
    actions = [action for action in parser._actions if "--help" not in action.option_strings]
    return sorted(actions, key=lambda action: bool(action.option_strings))


def arguments(parser: ArgumentParser) -> list[str]:
    """What comes after the command's name: arguments, and options that must be given."""
    forms = {None: "{0}", "?": "[{0}]", "*": "[{0} ...]", "+": "{0} [{0} ...]"}
    words = []
    for action in shown(parser):
        if not action.option_strings:
            words.append(forms[str(action.nargs) if action.nargs else None].format(option(action)))
        elif action.required:
            words.append(f"{option(action)} {action.dest.upper()}")
    return words


def option(action: Action) -> str:
    """How it is written: an argument in capitals, an option with the form of a special value."""
    if not action.option_strings:
        return action.dest.upper()
    value = form(action)
    own = value and not re.match(r"CONFIG|\{|\[ITEM", value)
    return f"{action.option_strings[0]} {value}" if own else action.option_strings[0]


def meaning(action: Action) -> str:
    """Its sentence, and the choices that this does not name."""
    if is_group(action):
        return "all options below it, as YAML text or a file"
    text = re.sub(r" \(default: .*\)$", "", str(action.help))
    if not all(choice in text for choice in choices(action)):
        text = f"{text.rstrip('.')}. One of {', '.join(choices(action))}."
    return escaped(text)


def choices(action: Action) -> list[str]:
    """The values that an option may have, but for true and false."""
    if action.choices is None and not form(action).startswith("{"):
        return []
    found = list(map(str, action.choices or form(action)[1:-1].split(",")))
    return [] if "true" in found else found


def form(action: Action) -> str:
    """What stands for its value in the help, if anything does."""
    return action.metavar if isinstance(action.metavar, str) else ""


def is_group(action: Action) -> bool:
    """Whether it stands for several options."""
    return bool(action.option_strings) and action.default == SUPPRESS


def default(action: Action) -> str:
    """As it is written on the command line; – for switches, and where there is none."""
    value = action.default
    if value == SUPPRESS or action.nargs == 0 or value is None or value == []:
        return "–"
    return f"`{plain(value)}`"


def plain(value: Any) -> str:
    """A value as YAML has it, numbers with three digits."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(plain, value))}]"
    if isinstance(value, float):
        return f"{value:.3g}"
    return value if isinstance(value, str) else json.dumps(value)


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A table."""
    lines = [list(heads), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return [f"| {' | '.join(cells)} |" for cells in lines]


def escaped(text: str) -> str:
    """Text that Markdown takes as it is, with options as code."""
    words = re.split(r"(--[\w.]+)", " ".join(text.split()))
    words[::2] = [re.sub(r"([\\`*_<|$])", r"\\\1", word) for word in words[::2]]
    words[1::2] = [f"`{word}`" for word in words[1::2]]
    return "".join(words)
