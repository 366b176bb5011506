"""The stored text of ``gramian train --help``, because the settings it describes load PyTorch.

Its types say which values are refused before PyTorch is loaded.

``python -m gramian.experiments.cli.train_help`` writes it anew, and a test says when.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union

from gramian.experiments.cli.options import unknown_option
from gramian.experiments.cli.train_options import KINDS, check_kind, help_text, peek, run_parser
from gramian.train.run_settings import check_values

FOLDER = Path(__file__).parent / "help"


def stored_help(words: Sequence[str]) -> str:
    """The help for the kind of model that a command line names."""
    kind = peek([word for word in words if word not in ("-h", "--help")]).kind or "conv"
    check_kind(kind)
    return help_file(kind).read_text(encoding="utf-8")


def check_words(words: Sequence[str]) -> None:
    """Refuse an option that there is not, and a value that it cannot have, without PyTorch."""
    of_models = {kind: model_options(kind) for kind in KINDS}
    parser = run_parser("conv")
    known = [*parser._option_string_actions, "--model"]
    known += [f"--{name}" for options in of_models.values() for name in options]
    for word in words:
        if word.startswith("--") and word.partition("=")[0] not in known:
            raise unknown_option(word, known)
    asked = peek(words)
    if asked.kind is not None:
        check_kind(asked.kind)
    if any(word.partition("=")[0] == "--model" for word in asked.words):
        return  # with all of its settings in one text
    kinds = [of_models[asked.kind]] if asked.kind else list(of_models.values())
    for name in {name: None for options in kinds for name in options}:
        hints = tuple({options[name]: None for options in kinds if name in options})
        parser.add_argument(f"--{name}", type=Union[hints])  # noqa: UP007
    given = parser.parse_args(asked.words, defaults=False)
    given.pop("output", None)  # a folder; lr_factors.output is a number
    check_values(dict(given.items()))


def model_options(kind: str) -> dict[str, Any]:
    """The options of a kind of model and their types, as its help has them."""
    text = help_file(kind).read_text(encoding="utf-8")
    found: dict[str, Any] = {}
    for option in re.split(r"\n  (?=--)", text):
        match = re.match(r"--(model\.[\w.]+) .*\(type: (.*), default: ", " ".join(option.split()))
        if match:
            found[match[1]] = eval(match[2].replace("null", "None"), {}, vars(typing))
    return found


def help_file(kind: str) -> Path:
    """Where the text for a kind of model is."""
    return FOLDER / f"train_{kind}.txt"


def store() -> None:
    """Write the texts anew."""
    for kind in KINDS:
        help_file(kind).write_text(help_text(kind), encoding="utf-8")


if __name__ == "__main__":
    store()
