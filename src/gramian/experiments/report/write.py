"""From result folders to the files of a report."""

from __future__ import annotations

from pathlib import Path

from gramian.experiments.report.curve_figures import save_curves
from gramian.experiments.report.gather import Results, Table, TableRow, gather
from gramian.experiments.report.grids import precision_grids, result_grid, scale_name
from gramian.experiments.report.latex import PACKAGES, as_latex
from gramian.experiments.report.markdown import as_markdown
from gramian.experiments.report.page import Image, Section, as_page
from gramian.train.record.files import write_text_atomically

TITLE = "Deep kernel machines: the paper’s results, reproduced"


def write_report(runs: Path | list[Path], output: Path) -> list[Path]:
    """Write ``report.html`` (all in one file), ``report.md``, ``report.tex`` and ``figures/``.

    Args:
        runs: result folders of ``gramian reproduce``, or folders that hold several.
        output: where to write; made if it is not there.
    """
    results = gather([runs] if isinstance(runs, Path) else runs)
    output.mkdir(parents=True, exist_ok=True)
    drawn: list[Path] = []
    sections = []
    for table in results.tables:
        images = []
        for row, png, pdf in save_curves(table, output / "figures"):
            images.append(Image(png, _alternative(table, row)))
            drawn += [png, pdf]
        grid = result_grid(table)
        sections.append(Section(grid.key, grid.title, grid, tuple(images)))
    for grid in precision_grids(results.tables):
        sections.append(Section(grid.key, grid.title, grid, ()))
    for picture in results.pictures:
        images = [Image(picture.path, picture.title)]
        sections.append(Section(picture.key, picture.title, None, tuple(images)))
    grids = [section.grid for section in sections if section.grid is not None]
    texts = {
        "report.html": as_page(TITLE, _facts(results), sections),
        "report.md": "\n".join([f"# {TITLE}\n", *map(as_markdown, grids)]),
        "report.tex": "\n".join([PACKAGES, *map(as_latex, grids)]),
    }
    for name, text in texts.items():
        write_text_atomically(output / name, text)
    return [*(output / name for name in texts), *drawn]


def _facts(results: Results) -> list[str]:
    """Where the numbers come from."""
    commits = ", ".join(results.commits) or "unknown"
    scales = sorted({scale_name(table) for table in results.tables})
    facts = [f"Made with gramian at {commits}."]
    if scales:
        facts.append(f"Tables here: {', '.join(scales)}. Click a heading to sort by it.")
    return facts


def _alternative(table: Table, row: TableRow) -> str:
    return (
        f"Learning curves of {row.label}, {scale_name(table)}: accuracy and log-likelihood of "
        "every seed over the epochs, on training and test data, ours and published"
    )
