"""The tables of a report, before they become Markdown, LaTeX or HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from gramian.experiments.statistics import MINUS, Summary, as_text, summarise
from paper.published import Metric, PublishedExperiment, printed_row
from paper.report.results import RowResults, TableResults
from paper.statistics import p_as_text, welch_p

NONE = "–"
PRECISIONS = {
    "32-true": "float32",
    "64-true": "float64",
    "tf32": "TF32",
    "tf32-emulated": "TF32 (emulated)",
}
DECIMALS: dict[Metric, int] = {"accuracy": 2, "log_likelihood": 4}


@dataclass(frozen=True)
class Cell:
    """What is shown, and the number to sort by; None comes last."""

    text: str
    order: int | float | None = None


@dataclass(frozen=True)
class Line:
    """A row: its label, what is special about it, and a cell for each other column."""

    label: str
    note: str
    cells: tuple[Cell, ...]
    quoted: bool = False


@dataclass(frozen=True)
class Grid:
    """A table: headings (the first is that of the labels), lines, and what to know about them."""

    key: str
    title: str
    subtitle: str
    headings: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


def result_grid(table: TableResults) -> Grid:
    """Ours beside the published, with failures, tests against the headline, and time."""
    there = published_name(table)
    headings: tuple[str, ...] = (
        "Method",
        "Accuracy (%), ours",
        f"Accuracy (%), {there}",
        "Log-likelihood, ours",
        f"Log-likelihood, {there}",
        "Failed, ours",
        f"Failed, {there}",
        "p, accuracy",
        "p, log-likelihood",
        "s / epoch, ours",
    )
    lines = [_line(row, table.reference) for row in table.rows]
    lines += [_quoted_line(*quoted) for quoted in table.quoted]
    epochs = f"{table.epochs} epochs, "
    if not table.is_of_paper:  # nothing is published, and rows have epochs of their own
        epochs = ""
        kept = [n for n, heading in enumerate(headings) if "published" not in heading]
        headings = tuple(headings[n] for n in kept)
        cells = [n - 1 for n in kept[1:]]
        lines = [replace(line, cells=tuple(line.cells[n] for n in cells)) for line in lines]
    seeds = f"{table.seeds} seed{'s' if table.seeds > 1 else ''}"
    return Grid(
        key=table.key,
        title=f"{table.title} — {scale_name(table)}, {precision_name(table)}",
        subtitle=f"{table.data}, {epochs}{seeds}",
        headings=headings,
        lines=tuple(lines),
        notes=tuple(_notes(table)),
        warnings=tuple(_warnings(table)),
        failures=tuple(
            f"{row.label}, seed {run.seed}, epoch {run.failure.epoch}: {run.failure.reason}"
            for row in table.rows
            for run in row.runs
            if run.failure is not None
        ),
    )


def scale_name(table: TableResults) -> str:
    """The scale in words."""
    return "full size" if table.is_as_published else f"{table.scale} scale"


def published_name(table: TableResults) -> str:
    """What the published values are called beside those of a table."""
    return "published" if table.is_as_published else "published, full size"


def precision_name(table: TableResults) -> str:
    """The precision in words."""
    return PRECISIONS.get(table.precision, table.precision)


def _line(row: RowResults, headline: RowResults) -> Line:
    seconds = [run.seconds_per_epoch for run in row.runs if run.seconds_per_epoch is not None]
    mean = fmean(seconds) if seconds else None
    cells = (
        _ours(row, "accuracy"),
        _published(row.theirs, "accuracy"),
        _ours(row, "log_likelihood"),
        _published(row.theirs, "log_likelihood"),
        failed_cell(row),
        published_failed_cell(row.theirs),
        _p(row, headline, "accuracy"),
        _p(row, headline, "log_likelihood"),
        seconds_cell(mean),
    )
    return Line(row.label, row.difference, cells)


def seconds_cell(value: float | None) -> Cell:
    """Seconds with three digits."""
    return Cell(NONE) if value is None else Cell(f"{value:#.3g}".rstrip("."), value)


def _quoted_line(label: str, accuracy: str, log_likelihood: str) -> Line:
    empty = Cell(NONE)
    cells = (empty, _printed(accuracy), empty, _printed(log_likelihood), *[empty] * 5)
    return Line(label, "quoted by the paper", cells, quoted=True)


def _ours(row: RowResults, metric: Metric) -> Cell:
    values = row.values(metric)
    if not values:
        return Cell("unfinished" if row.unfinished else "Fail")
    summary = _summary(values, metric)
    count = f" ({summary.n})" if summary.n > 1 else ""  # a single run says so itself
    return Cell(as_text(summary, DECIMALS[metric]) + count, summary.mean)


def _published(experiment: PublishedExperiment | None, metric: Metric) -> Cell:
    """As printed; from the logs if it is not in the paper."""
    if experiment is None:
        return Cell(NONE)
    row = printed_row(experiment.key)
    if row is not None:
        return _printed(getattr(row, metric))
    summary = _summary(experiment.values(metric), metric)
    return Cell(as_text(summary, DECIMALS[metric], 4), summary.mean)


def _printed(text: str) -> Cell:
    found = re.match(r"-?\d+(\.\d+)?", text)
    if found is None:
        return Cell(NONE if text == "-" else text)
    return Cell(text.replace("-", MINUS), float(found[0]))


def _summary(values: Sequence[float], metric: Metric) -> Summary:
    return summarise([100 * v for v in values] if metric == "accuracy" else values)


def _p(row: RowResults, headline: RowResults, metric: Metric) -> Cell:
    if row is headline:
        return Cell(NONE)
    p = welch_p(headline.values(metric), row.values(metric))
    return Cell(p_as_text(p), p)


def failed_cell(row: RowResults) -> Cell:
    """How many of our seeds failed, with the epochs."""
    cell = _failures([failure.epoch for failure in row.failures], row.total)
    rest = f"; {row.unfinished} unfinished" if row.unfinished else ""
    return Cell(cell.text + rest, cell.order)


def published_failed_cell(experiment: PublishedExperiment | None) -> Cell:
    """How many of the published seeds failed, with the epochs."""
    if experiment is None:
        return Cell(NONE)
    return _failures(experiment.failure_epochs, len(experiment.runs))


def _failures(epochs: Sequence[int], total: int) -> Cell:
    text = f"{len(epochs)}/{total}"
    if epochs:
        text += f" (epoch{'s' if len(epochs) > 1 else ''} {', '.join(map(str, epochs))})"
    return Cell(text, len(epochs))


def _warnings(table: TableResults) -> Iterator[str]:
    if table.is_of_paper and not table.is_as_published:
        yield (
            f"This is the {table.scale} scale, {table.epochs} epochs on {table.data}. The "
            "published columns are the paper’s full-size experiment (widths 512, 1024, 2048; "
            "1200 epochs unless a row says otherwise; 4 seeds): compare the order of the rows "
            "and the failures, not the values."
        )
    unfinished = sum(row.unfinished for row in table.rows)
    if unfinished:
        total = sum(row.total for row in table.rows)
        yield f"Preliminary: {unfinished} of {total} runs are unfinished."


def _notes(table: TableResults) -> Iterator[str]:
    yield (
        "Ours: mean ± standard error (number of runs) over the seeds that finished. As in the "
        "paper, failed runs are not in the means."
    )
    if any(run.clipped for row in table.rows for run in row.runs):
        yield (
            "As in the paper, log-likelihoods of deep kernel machines are the clipped ones, and "
            "those of networks are not clipped."
        )
    yield (
        "p: two-tailed t-test with unequal variances (Welch) of our runs against "
        f"“{table.reference.label}”; – where one of the two has fewer than two runs."
    )
    yield "Failed: numerical errors of all seeds, with the epochs, counted from 1."
    if any(row.published and printed_row(row.published) is None for row in table.rows):
        yield "A published row that is not in the paper is computed from its logs."
    if table.quoted:
        yield "† Quoted by the paper from earlier work; neither logged nor run here."
