"""``gramian data``: list, fetch and verify data sets."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from gramian.experiments.cli.options import Parser, UsageError, add_common_options


def run(words: Sequence[str]) -> None:
    """Do what the first word says."""
    options = data_parser().parse_args(list(words))
    if options.action == "list":
        return show(options.data_dir, options.json)
    if not options.name:
        raise UsageError(f"gramian data {options.action} needs the name of a data set")
    from gramian.train.data import fetch, verify

    if options.action == "fetch":
        result = {"name": options.name, "path": str(fetch(options.name, options.data_dir))}
        text = f"{result['name']}: {result['path']}"
    else:
        verify(options.name, options.data_dir)
        result = {"name": options.name, "verified": "yes"}
        text = f"{options.name}: verified"
    sys.stdout.write((json.dumps(result) if options.json else text) + "\n")


def data_parser() -> Parser:
    """The options."""
    parser = Parser("data", "List, fetch and verify data sets.")
    parser.add_argument("action", choices=["list", "fetch", "verify"], help="what to do")
    parser.add_argument("name", nargs="?", help="data set to fetch or verify")
    parser.add_argument(
        "--data_dir",
        type=str | None,
        default=None,
        help="where data are stored; GRAMIAN_DATA_DIR or the user's cache if not given",
    )
    add_common_options(parser)
    return parser


def show(data_dir: str | None, as_json: bool) -> None:
    """A table of all data sets."""
    from rich.console import Console
    from rich.table import Table

    from gramian.train.data import available

    infos = available(data_dir)
    if as_json:
        sys.stdout.write(json.dumps([asdict(info) for info in infos], default=str) + "\n")
        return
    table = Table("name", "what", "classes", "size", "stored")
    for info in infos:
        where = "comes with the installation" if info.embedded else str(info.stored or "–")
        size = "–" if info.embedded else f"{info.size / 1e6:.0f} MB"
        table.add_row(info.name, info.description, str(info.classes), size, where)
    Console(file=sys.stdout).print(table)
