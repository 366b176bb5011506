"""Tables of results on standard output."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gramian.experiments.report.gather import Results
from gramian.experiments.report.markdown import label
from gramian.experiments.report.tables import all_grids


def show_tables(results: Results) -> None:
    """Every table, with its warnings and notes below."""
    console = Console(file=sys.stdout)
    for grid in all_grids(results):
        title = Text(f"{grid.title} ({grid.subtitle})")
        table = Table(title=title, title_justify="left", show_lines=True)
        for number, heading in enumerate(grid.headings):
            table.add_column(Text(heading), justify="right" if number else "left")
        for line in grid.lines:
            table.add_row(Text(label(line)), *(Text(cell.text) for cell in line.cells))
        console.print(table)
        for note in (*grid.warnings, *grid.notes):
            console.print(Text(f"- {note}"))
