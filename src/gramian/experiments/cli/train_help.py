"""The stored text of ``gramian train --help``, because the settings it describes load PyTorch.

``python -m gramian.experiments.cli.train_help`` writes it anew, and a test says when.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gramian.experiments.cli.options import UsageError, unknown_option
from gramian.experiments.cli.train_options import help_text, peek

FOLDER = Path(__file__).parent / "help"


def stored_help(words: Sequence[str]) -> str:
    """The help for the kind of model that a command line names."""
    kind = peek([word for word in words if word not in ("-h", "--help")]).kind or "conv"
    if not help_file(kind).exists():
        raise UsageError(f"unknown kind {kind!r}")
    return help_file(kind).read_text(encoding="utf-8")


def check_names(words: Sequence[str]) -> None:
    """Refuse an option that no kind of model has, without waiting for PyTorch."""
    texts = (path.read_text(encoding="utf-8") for path in FOLDER.glob("train_*.txt"))
    known = {name for text in texts for name in re.findall(r"(?<=  |, )--[\w.]+\+?", text)}
    for word in words:
        if word.startswith("--") and word.partition("=")[0] not in known:
            raise unknown_option(word, known)


def help_file(kind: str) -> Path:
    """Where the text for a kind of model is."""
    return FOLDER / f"train_{kind}.txt"


def store() -> None:
    """Write the texts anew."""
    from gramian.train.config import MODEL_CONFIGS

    for kind in MODEL_CONFIGS:
        help_file(kind).write_text(help_text(kind), encoding="utf-8")


if __name__ == "__main__":
    store()
