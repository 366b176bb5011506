"""The program ``gramian``. Only the chosen command is imported, so that help is quick."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence

COMMANDS = {
    "train": "train a model; resumes by itself where it was stopped",
    "evaluate": "figures of a trained model on a data set",
    "predict": "class, probability, entropy and latent variance of images or rows",
    "export": "a trained model as one file for PyTorch (pt2) or ONNX",
    "data": "list, fetch and verify data sets",
    "reproduce": "the paper's tables and figures, at full size or in miniature",
    "report": "results of reproduce as one HTML page, and as Markdown and LaTeX tables",
    "bench": "speed and memory beside a network of the same widths",
    "info": "versions and devices, what a model is made of, or what one would cost (--scale)",
}
HELP = """usage: gramian COMMAND [options]      gramian COMMAND --help

Deep kernel machines: representation learning with Gram matrices.

commands:
{commands}

options:
  -h, --help     this text
  --version      the version

Results go to standard output (--json for programs), everything else to standard error. Options can
also come from a file (--config FILE) or the environment (GRAMIAN_TRAIN__SEED=5).
Exit codes: 0 done, 1 failure, 2 wrong usage, 3 numerical failure, 4 data missing or damaged,
130 Ctrl-C and 143 SIGTERM, after a checkpoint was written.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        lines = (f"  {name:<12} {text}" for name, text in COMMANDS.items())
        sys.stdout.write(HELP.format(commands="\n".join(lines)))
        return 0 if words else 2
    if words[0] == "--version":
        from gramian._version import __version__

        sys.stdout.write(f"gramian {__version__}\n")
        return 0
    if words[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        return fail(f"unknown command {words[0]!r}; commands are {known}", 2)
    verbose = "--verbose" in words
    set_up_logging("--quiet" in words)
    try:
        command = importlib.import_module(f"gramian.experiments.cli.commands.{words[0]}")
        command.run(words[1:])
    except KeyboardInterrupt as stop:  # or Stopped, after a checkpoint was written
        return fail(str(stop) or "interrupted", getattr(stop, "exit_code", 130))
    except SystemExit as stop:  # jsonargparse has said what is wrong
        return stop.code if isinstance(stop.code, int) else 1
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if verbose or (code is None and not isinstance(error, OSError | ImportError)):
            logging.getLogger("gramian").exception("unexpected error" if code is None else "")
        return fail(str(error), 1 if code is None else code)
    return 0


def fail(message: str, code: int) -> int:
    """Say what is wrong, on standard error."""
    sys.stderr.write(f"gramian: {message}\n")
    return code


def set_up_logging(quiet: bool) -> None:
    """Messages of the library, as plain lines on standard error."""
    logger = logging.getLogger("gramian")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers = [handler]
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False
