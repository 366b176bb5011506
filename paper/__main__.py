"""``python -m paper``: everything of the paper by one command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from gramian.experiments.cli.main import answer, fail, words_of

COMMANDS = {"cost": "paper.cost.command"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = words_of(arguments)
    if not words or words[0] not in COMMANDS:
        message = f"commands are {', '.join(COMMANDS)}"
        return fail(message, 2, "UsageError", "python -m paper cost")
    name, *rest = words
    run = importlib.import_module(COMMANDS[name]).run
    return answer(f"python -m paper {name}", rest, run)


if __name__ == "__main__":
    sys.exit(main())
