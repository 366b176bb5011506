"""``gramian tune``: a search over settings, by validation."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse.typing import PositiveInt
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gramian.experiments.cli.options import UsageError, announce, on_one_line
from gramian.experiments.cli.terminal import as_json
from gramian.experiments.cli.train_help import check_words
from gramian.experiments.cli.train_options import named_modules, parse_train
from gramian.experiments.escapes import printable, say
from gramian.explained import MissingExtraError

if TYPE_CHECKING:
    from gramian.experiments.tune.tuning import Tuning

SHOWN = 10  # trials in the table
OF_ONE_RUN = ("--name", "--resume", "--plots", "--tensorboard", "--print_config")


def run(words: Sequence[str]) -> None:
    """Search, or go on with a search, and show what was found."""
    options, rest = tune_parser().parse_known_args(words)
    if options.help:
        sys.stdout.write(tune_parser().format_help())
        return
    for word in rest:
        if word.partition("=")[0] in OF_ONE_RUN:
            raise UsageError(f"{word} is for one run (gramian train): a search has many")
    check_words(rest)
    announce("tune")
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("gramian tune", "tune") from error
    from gramian.experiments.tune.search_space import bounded, search_space
    from gramian.experiments.tune.tuning import Tuning
    from gramian.train.data import load

    config, settings, splits = parse_train(rest)
    train = (splits or load(config.data, config.data_dir)).train
    num_data = min(len(train), config.train_size or len(train))
    config = bounded(config, num_data)
    space = search_space(config, options.search, num_data)
    folder = Path(options.output or f"tune/{Path(config.data).stem}-{config.kind}")
    modules = [*settings["import"], *named_modules(settings, {})]
    tuning = Tuning(folder, config, space, modules)
    if settings.dry_run or not settings.quiet:
        sys.stderr.write("".join(f"  {each}\n" for each in space))
    if settings.dry_run:
        return
    tuning.run(int(options.trials), int(options.jobs))
    tuning.write()
    show(tuning, settings.json)
    if tuning.best() is None:
        raise SystemExit(1)  # each trial has said why


class OwnParser(argparse.ArgumentParser):
    """A parser whose errors are ours."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Raise instead of ending the program."""
        words = re.fullmatch(r"argument (\S+): invalid (.*) value: '(.*)'", message)
        if words:
            message = f"{words[1]}: expected {words[2]}, got {words[3]}"
        raise UsageError(on_one_line(message))


def tune_parser() -> OwnParser:
    """The options of the search; all others are those of train."""
    parser = OwnParser(
        "gramian tune",
        description="A search over the settings of gramian train, by validation log-likelihood. "
        "The same command goes on with a search. All other options are those of gramian train.",
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="this text")
    parser.add_argument("--trials", type=PositiveInt, default=20, help="in all (default: 20)")
    parser.add_argument("--jobs", type=PositiveInt, default=1, help="processes (default: 1)")
    parser.add_argument(
        "--search", action="append", default=[], metavar="NAME[=LOW:HIGH or =A,B]",
        help="a setting to search, with its values, or with values that suit its type; several "
        "times; without it lr, batch_size and the settings of the kind of model that matter most",
    )  # fmt: skip
    parser.add_argument("--output", help="folder of the search (default: tune/DATA-KIND)")
    return parser


def show(tuning: Tuning, json: bool) -> None:
    """The best trials, and where everything is."""
    rows, best = tuning.rows(), tuning.best()
    if json:
        found = {"folder": str(tuning.folder), "best": best.number if best else None}
        sys.stdout.write(as_json({**found, "trials": rows}))
        return
    table = Table(title=Text(printable(f"{tuning.folder}, by validation")), title_justify="left")
    heads = {"log_likelihood": "ll", "accuracy": "acc."}
    names = [name for name in rows[0] if name not in ("folder", "state")]
    for name in names:
        head = heads.get(name, name.rpartition(".")[2])
        table.add_column(head, justify="right", overflow="fold")
    ended = [row for row in rows if row["state"] == "complete"]
    for row in ended[:SHOWN]:
        table.add_row(*(as_cell(row[name]) for name in names))
    Console(file=sys.stdout).print(table)
    given_up = sum(row["state"] == "pruned" for row in rows)
    failed = len(rows) - len(ended) - given_up
    say(
        f"{len(rows)} trials, {given_up} given up early, {failed} failed: "
        f"{tuning.folder / 'trials.csv'}\n"
    )
    if best is None:
        sys.stdout.write("no trial has come to its end\n")
        return
    say(
        f"picture: {tuning.folder / 'tune.png'}\n"
        f"the best: gramian train --config {tuning.folder / 'best.yaml'}\n"
    )


def as_cell(value: object) -> str:
    """A value of the table."""
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else printable(str(value))
