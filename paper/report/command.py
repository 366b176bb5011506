"""``python -m paper report``: results of tables, or runs of ``train``, as tables and one page."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gramian.experiments.cli.options import Parser, add_common_options
from gramian.experiments.escapes import say
from gramian.explained import MissingExtraError


def run(words: Sequence[str]) -> None:
    """Write the report, and say where it is."""
    options = report_parser().parse_args(list(words))
    try:
        from paper.report.write import write_report
    except ModuleNotFoundError as error:
        raise MissingExtraError("the report", "plots") from error
    folders = [Path(folder) for folder in options.runs]
    output = Path(options.output) if options.output else folders[0] / "report"
    paths = write_report(folders, output)
    if options.json:
        sys.stdout.write(json.dumps({"files": [str(path) for path in paths]}) + "\n")
    else:
        say("".join(f"{path}\n" for path in paths))


def report_parser() -> Parser:
    """The options."""
    parser = Parser(
        "paper report",
        "Tables (Markdown, LaTeX), learning curves (PNG, PDF) and one HTML page: the results of "
        "the tables beside the published ones, or runs of gramian train side by side.",
        program="python -m",
    )
    parser.add_argument(
        "runs", nargs="+", help="result folder, or folder that holds several; one or more"
    )
    parser.add_argument("--output", type=str | None, default=None, help="folder; null: RUNS/report")
    add_common_options(parser)
    return parser
