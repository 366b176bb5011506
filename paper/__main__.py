"""``python -m paper``: everything of the paper by one command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from gramian.experiments.cli.main import answer, words_of

COMMANDS = {
    "report": "paper.report.command",
    "cost": "paper.cost.command",
    "linear": "paper.linear",
}
"""All other words are for ``paper.tables``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = words_of(arguments)
    name = words[0] if words and words[0] in COMMANDS else ""
    run = importlib.import_module(COMMANDS.get(name, "paper.tables")).run
    return answer(f"python -m paper {name}".strip(), words[1:] if name else words, run)


if __name__ == "__main__":
    sys.exit(main())
