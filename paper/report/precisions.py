"""Failures by row and precision, beside the published ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from paper.report.grids import (
    NONE,
    Cell,
    Grid,
    Line,
    failed_cell,
    precision_name,
    published_failed_cell,
    scale_name,
)
from paper.report.results import RowResults, TableResults


def precision_grids(tables: Sequence[TableResults]) -> list[Grid]:
    """Failures by row and precision, for each table that was run in more than one precision."""
    groups: dict[tuple[str | int, ...], dict[str, TableResults]] = {}
    for table in tables:
        same = table.name, table.scale, table.data, table.epochs
        groups.setdefault(same, {}).setdefault(table.precision, table)
    return [_precision_grid(list(group.values())) for group in groups.values() if len(group) > 1]


def _precision_grid(tables: Sequence[TableResults]) -> Grid:
    first = tables[0]
    rows = {row.key: row for table in tables for row in table.rows}
    columns = {
        f"Failed, {precision_name(table)}": _column(table, rows, failed_cell) for table in tables
    }
    columns["Failed, published, full size, TF32"] = [
        published_failed_cell(row.theirs) for row in rows.values()
    ]
    for heading, cell in (("Step of failure", median_step), ("Condition number", median_condition)):
        for table in tables:
            cells = _column(table, rows, cell)
            if any(cell.order is not None for cell in cells):
                columns[f"{heading}, {precision_name(table)}"] = cells
    return Grid(
        key=f"{first.key}-precisions",
        title=f"{first.title} — failures by precision, {scale_name(first)}",
        subtitle=f"{first.data}, {first.epochs} epochs, {', '.join(map(precision_name, tables))}",
        headings=("Method", *columns),
        lines=tuple(
            Line(row.label, row.difference, cells)
            for row, cells in zip(rows.values(), zip(*columns.values(), strict=True), strict=True)
        ),
        notes=(
            "Failed: numerical errors of all seeds, with the epochs, counted from 1. Step of "
            "failure: the median.",
            "Condition number: that of the worst Gram matrix when it was last recorded, in failed "
            "runs too; median over the seeds.",
        ),
    )


def _column(
    table: TableResults, keys: Iterable[str], cell: Callable[[RowResults], Cell]
) -> list[Cell]:
    """A cell for each key; an empty one where the table has no such row."""
    rows = {row.key: row for row in table.rows}
    return [cell(rows[key]) if key in rows else Cell(NONE) for key in keys]


def median_step(row: RowResults) -> Cell:
    """Of the failures."""
    return _median([failure.step for failure in row.failures], ",.0f")


def median_condition(row: RowResults) -> Cell:
    """Of the last condition numbers of all runs."""
    return _median([run.condition for run in row.runs], ".1e")


def _median(values: Sequence[int | float | None], form: str) -> Cell:
    known = [value for value in values if value is not None]
    return Cell(format(median(known), form), median(known)) if known else Cell(NONE)
