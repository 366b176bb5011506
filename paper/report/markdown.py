"""Tables as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from paper.report.grids import Grid, Line


def as_markdown(grid: Grid) -> str:
    """A heading, warnings, a table, what is special about its rows, notes and failures."""
    width = len(grid.headings)
    lines = [
        f"## {escape(grid.title)}",
        "",
        escape(grid.subtitle),
        "",
        *(f"> {escape(warning)}\n" for warning in grid.warnings),
        _row(grid.headings),
        _row([":--", *["--:"] * (width - 1)], raw=True),
        *(_row([label(line), *(cell.text for cell in line.cells)]) for line in grid.lines),
        "",
    ]
    rows = [
        f"**{escape(line.label)}**: {escape(line.note)}"
        for line in grid.lines
        if line.note and not line.quoted
    ]
    lists = {
        "Rows": rows,
        "Notes": list(map(escape, grid.notes)),
        "Failures": list(map(escape, grid.failures)),
    }
    for name, items in lists.items():
        lines += [f"### {name}", "", *(f"- {item}" for item in items), ""] if items else []
    return "\n".join(lines)


def label(line: Line) -> str:
    """The label; quoted rows are marked."""
    return f"{line.label} †" if line.quoted else line.label


def escape(text: str) -> str:
    """Text that Markdown shows as it is, also inside a table."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", flat)


def _row(cells: Sequence[str], raw: bool = False) -> str:
    return f"| {' | '.join(cells if raw else map(escape, cells))} |"
