"""``python -m paper NAME``: the paper's tables and figures by one command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt
from rich.console import Console
from rich.table import Table as TextTable
from rich.text import Text

from gramian.experiments.cli.options import Parser, UsageError, add_common_options, announce
from gramian.experiments.cli.terminal import as_json
from gramian.experiments.escapes import printable
from paper.conditions.sweep import FIGURES
from paper.registry import TABLES

if TYPE_CHECKING:
    from paper.plan import Plan
    from paper.report.grids import Grid

HIDDEN = ("Log-likelihood, published", "Failed, published", "s / epoch")  # of one precision
SEEDS = {"small": 3, "paper": 4}  # the paper has 4


def run(words: Sequence[str]) -> None:
    """List the experiments, or run one."""
    options = tables_parser().parse_args(list(words))
    if options.name == "list":
        show_list(options.json)
    elif options.name in FIGURES:
        announce(f"paper {options.name}")
        run_conditions(options)
    elif options.name in TABLES:
        announce(f"paper {options.name}")
        run_table(options)
    else:
        known = ", ".join([*TABLES, *FIGURES])
        raise UsageError(f"unknown experiment {options.name!r}; known are {known}, and list")


def tables_parser() -> Parser:
    """The options."""
    parser = Parser(
        "paper",
        "The paper's tables and figures. Started again, it goes on where it was; a finished run is "
        "never repeated. `python -m paper report RUNS` writes a report of the results, `python -m "
        "paper cost` says what full size would cost.",
        program="python -m",
    )
    names = ", ".join([*TABLES, *FIGURES])
    parser.add_argument("name", help=f"list, {names}; or report, cost, linear")
    parser.add_argument(
        "--scale",
        type=Literal["small", "paper"],
        default="small",
        help="small: a miniature for two cores; paper: as published, on a GPU",
    )
    parser.add_argument(
        "--seeds",
        type=PositiveInt | None,
        help="how many, from 0 on; null: 3 small, 4 paper, stability, widths and few",
    )
    parser.add_argument("--seed", type=NonNegativeInt | None, help="only this seed")
    parser.add_argument("--only", type=str | None, help="only these rows, with commas between")
    parser.add_argument("--epochs", type=PositiveInt | None, help="instead of the scale's own")
    parser.add_argument("--data", type=str | None, help="another data set, by name or path")
    parser.add_argument(
        "--train_size", type=PositiveInt | None, help="use only so many training points"
    )
    parser.add_argument(
        "--batch_size", type=PositiveInt | None, help="data points per step, of the kernel machines"
    )
    parser.add_argument("--data_dir", type=str | None, help="where data sets are stored")
    parser.add_argument(
        "--precision",
        type=Literal["32-true", "64-true", "tf32", "tf32-emulated"] | None,
        help="instead of the scale's own",
    )
    parser.add_argument("--jobs", type=PositiveInt, default=1, help="processes, or jobs, at a time")
    parser.add_argument(
        "--launcher",
        type=Literal["here", "slurm", "local"],
        default="here",
        help="here: in processes of this program; slurm: each run is a job of an array; local: "
        "the same on this machine",
    )
    parser.add_argument(
        "--resources",
        type=dict[str, str | int | float],
        default={},
        help="of a job, for submitit: '{timeout_min: 240, gpus_per_node: 1, slurm_partition: gpu}'",
    )
    parser.add_argument(
        "--wait", type=bool, default=True, help="stay until all jobs are done; they need no waiting"
    )
    parser.add_argument("--output", default="runs/reproduce", help="folder of all reproductions")
    add_common_options(parser)
    return parser


def run_table(options: Namespace) -> None:
    """Train what is left to train, and show the table."""
    from paper.report.gather import gather
    from paper.report.grids import result_grid
    from paper.report.precisions import precision_grids
    from paper.table_runs import run_plans

    plans = table_plans(options)
    if options.launcher == "here":
        run_plans(plans, options.jobs, options.quiet)
    else:
        from paper.launch import Cluster, launch

        cluster = Cluster(options.launcher, options.jobs, options.resources)
        launch(plans, cluster, options.wait)
    folders = [str(plan.folder) for plan in plans]
    tables = gather([plan.folder for plan in plans]).tables
    (grid,) = precision_grids(tables) or [result_grid(tables[0])]
    if options.json:
        where = {"folder": folders[0]} if len(folders) == 1 else {"folders": folders}
        facts = [
            dict(zip(("row", *grid.headings[1:]), (line.label, *texts), strict=True))
            for line in grid.lines
            for texts in [[cell.text for cell in line.cells]]
        ]
        sys.stdout.write(as_json({**where, "rows": facts}))
    else:
        names = " ".join(folders)
        show_grid(grid, hidden=HIDDEN if len(tables) == 1 else ())
        sys.stdout.write(f"\nresults: {names}   (python -m paper report {names})\n")


def table_plans(options: Namespace) -> list[Plan]:
    """A plan for each precision that the table is run in."""
    from paper.plan import Changes, Plan

    table = TABLES[options.name]
    own = {key for row in table.rows for key, value in row.changes.items() if not callable(value)}
    for name, key in (("epochs", "max_epochs"), ("train_size", "train_size")):
        if options[name] is not None and key in own:
            raise UsageError(f"--{name}: the rows of {table.name} have numbers of their own")
    seeds = SEEDS["paper" if table.preset else options.scale]
    changes = Changes(**{field.name: options[field.name] for field in fields(Changes)})
    plan = Plan(
        table=table,
        scale=options.scale,
        seeds=options.seeds or seeds,
        changes=changes,
        output=Path(options.output),
        only=tuple(options.only.split(",")) if options.only else (),
        seed=options.seed,
    )
    if options.precision or not table.precisions:
        return [plan]
    return [
        replace(plan, changes=replace(changes, precision=precision))
        for precision in table.precisions
    ]


def run_conditions(options: Namespace) -> None:
    """Train the toy for each curve, and draw the figure."""
    from paper.conditions.sweep_runs import run_figure

    if options.launcher != "here":
        raise UsageError("--launcher is for tables")
    for name in ("seeds", "seed", "only", "data", "train_size", "batch_size", "precision"):
        if options[name] is not None:
            raise UsageError(f"--{name} is for tables; figures have data and seeds of their own")
    suffix = f"-{options.epochs}epochs" if options.epochs else ""
    folder = Path(options.output) / f"{options.name}{suffix}"
    figure, (epochs, jobs) = FIGURES[options.name], (options.epochs, options.jobs)
    run_figure(figure, folder, epochs=epochs, jobs=jobs, quiet=options.quiet)
    if options.json:
        sys.stdout.write(as_json({"folder": str(folder)}))
    else:
        sys.stdout.write(f"figure: {folder / 'figure.png'}\n")


def show_list(json: bool) -> None:
    """All experiments with their rows or panels."""
    entries: list[dict[str, Any]] = [
        {"name": name, "what": table.title, "rows": [row.key for row in table.rows]}
        for name, table in TABLES.items()
    ] + [
        {"name": name, "what": figure.title, "rows": [panel.key for panel in figure.panels]}
        for name, figure in FIGURES.items()
    ]
    if json:
        sys.stdout.write(as_json(entries))
        return
    table = TextTable(title="python -m paper NAME", title_justify="left", show_lines=True)
    for column in ("name", "what", "rows"):
        table.add_column(column)
    for entry in entries:
        table.add_row(entry["name"], entry["what"], ", ".join(entry["rows"]))
    Console(file=sys.stdout).print(table)


def show_grid(grid: Grid, hidden: tuple[str, ...]) -> None:
    """What a terminal has room for of a table of results; the report shows all of it."""
    title = f"{grid.title}\n{grid.subtitle}"
    table = TextTable(title=shown(title), title_justify="left", show_lines=True)
    first, *headings = grid.headings
    table.add_column(shown(first))
    columns = [n for n, heading in enumerate(headings) if not heading.startswith(hidden)]
    for column in columns:
        table.add_column(shown(headings[column]), justify="right")
    for line in grid.lines:
        if not line.quoted:
            cells = (line.cells[column].text for column in columns)
            table.add_row(*map(shown, (line.label, *cells)))
    console = Console(file=sys.stdout)
    console.print(table)
    for text in (*grid.warnings, *grid.failures):
        console.print(shown(f"• {text}"))


def shown(text: str) -> Text:
    """Text of a folder's files, without markup and control characters."""
    return Text(printable(text, keep="\n"))
