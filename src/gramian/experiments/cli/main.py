"""The program ``gramian``. Only the chosen command is imported, so that help is quick."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence

from gramian._version import __version__
from gramian.experiments.cli.standard_streams import secure_streams
from gramian.experiments.escapes import printable
from gramian.explained import address, anchor, is_out_of_memory, section_of
from gramian.train.runtime.threads import bound_spinning

COMMANDS = {
    "train": "train a model; resumes by itself where it was stopped",
    "tune": "search over settings by validation; goes on where it was stopped",
    "evaluate": "metrics of a trained model on a data set",
    "predict": "class, probabilities, entropy and latent variance of images or rows",
    "explain": "why a model says what it says about images, as one page",
    "map": "how classes come apart from layer to layer, as a picture and as a page",
    "serve": "a page to try a model, and a JSON interface for programs",
    "export": "a trained model as one file for PyTorch (pt2) or ONNX",
    "data": "list, fetch and verify data sets",
    "help": "what an error means and what to do: its name, or the message pasted",
    "info": "versions and devices, or what a model is made of",
}
MOVED = {
    "reproduce": "python -m paper",
    "report": "python -m paper report",
    "bench": "python -m benchmarks",
}
"""Commands of the repository, which the package does not have."""
EXIT_CODES = {
    0: "done",
    1: "failure",
    2: "wrong usage",
    3: "numerical failure",
    4: "data missing or damaged",
    130: "Ctrl-C, after a checkpoint was written",
    143: "SIGTERM, after a checkpoint was written",
}
HELP = """usage: gramian COMMAND [options]      gramian COMMAND --help

Deep kernel machines: representation learning with Gram matrices.

commands:
{commands}

options:
  -h, --help     this text
  --version      the version

Results go to standard output (--json for programs), everything else to standard error. Options of
train can also come from a file (--config FILE) or the environment (GRAMIAN_TRAIN__SEED=5).

exit codes:
{codes}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = words_of(arguments)
    if not words or words[0] in ("-h", "--help"):
        commands, codes = (
            "\n".join(f"  {name:<12} {text}" for name, text in table.items())
            for table in (COMMANDS, EXIT_CODES)
        )
        sys.stdout.write(HELP.format(commands=commands, codes=codes))
        return 0 if words else 2
    if words[0] == "--version":
        sys.stdout.write(f"gramian {__version__}\n")
        return 0
    name, *rest = words
    if name in MOVED:
        message = f"{name} is {MOVED[name]}, in a clone of Gramian's repository"
        return fail(message, 2, "UsageError")
    if name not in COMMANDS:
        message = f"unknown command {name!r}; commands are {', '.join(COMMANDS)}"
        return fail(message, 2, "UsageError")
    return answer(f"gramian {name}", rest, lambda words: run(name, words))


def words_of(arguments: Sequence[str] | None) -> list[str]:
    """The words of a command line; with None those of this process, before PyTorch is loaded."""
    if arguments is None:
        bound_spinning(os.environ)
        secure_streams()
    return list(sys.argv[1:] if arguments is None else arguments)


def answer(command: str, words: Sequence[str], run: Callable[[Sequence[str]], None]) -> int:
    """Run a command; returns its exit code. An error is a message on standard error."""
    set_up_logging("--quiet" in words)
    try:
        run(words)
    except KeyboardInterrupt as stop:  # or Stopped, after a checkpoint was written
        return fail(str(stop) or "interrupted", getattr(stop, "exit_code", 130), section_of(stop))
    except SystemExit as stop:  # after help
        return stop.code if isinstance(stop.code, int) else 1
    except Exception as error:
        if is_out_of_memory(error):
            reason = (str(error).strip() or "no more could be had").splitlines()[0]
            return fail(f"the memory does not suffice: {reason}", 1, "MemoryError")
        code = getattr(error, "exit_code", None)
        if "--verbose" in words or (code is None and not isinstance(error, OSError | ImportError)):
            logging.getLogger("gramian").exception("unexpected error" if code is None else "")
        return fail(str(error), 1 if code is None else code, section_of(error), command)
    return 0


def run(name: str, words: Sequence[str]) -> None:
    """Run one command."""
    if name == "train":  # its options load PyTorch
        from gramian.experiments.cli.options import announce
        from gramian.experiments.cli.train_help import check_words, stored_help

        if not {"-h", "--help"}.isdisjoint(words):
            sys.stdout.write(stored_help(words))
            return
        check_words(words)
        announce(name)
    importlib.import_module(f"gramian.experiments.cli.commands.{name}").run(words)


def fail(message: str, code: int, section: str, command: str = "gramian") -> int:
    """Say what is wrong, on standard error, and where to read on; a wrong command in one line."""
    message = printable(message, keep="\n\t")
    if code == 2:
        line = " ".join(message.split())
        sys.stderr.write(f"gramian: {line} (see {command} --help; {anchor(section)})\n")
    else:
        sys.stderr.write(f"gramian: {message}\n  {address(section)}\n")
    return code


class PlainLines(logging.Formatter):
    """Messages without control characters, which names in files may have."""

    def format(self, record: logging.LogRecord) -> str:
        """As usual, escaped."""
        return printable(super().format(record), keep="\n\t")


def set_up_logging(quiet: bool) -> None:
    """Messages of the library, as plain lines on standard error."""
    logger = logging.getLogger("gramian")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainLines("%(message)s"))
    logger.handlers = [handler]
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False
