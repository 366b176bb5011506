"""From result folders to the files of a report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gramian.experiments.plots.style import Figure, save
from gramian.train.record.files import write_text_atomically
from paper.report.curve_figures import plain_curves, table_curves
from paper.report.gather import gather
from paper.report.grids import Grid, result_grid, scale_name
from paper.report.latex import PACKAGES, as_latex
from paper.report.markdown import as_markdown
from paper.report.page import Image, Section, as_page
from paper.report.plain_runs import plain_grid
from paper.report.precisions import precision_grids
from paper.report.results import Results

PAPER = "Deep kernel machines: the paper’s results, reproduced"
PLAIN = "Deep kernel machines: runs"


def write_report(runs: Path | list[Path], output: Path) -> list[Path]:
    """Write ``report.html`` (all in one file), ``report.md``, ``report.tex`` and ``figures/``.

    Args:
        runs: result folders of ``python -m paper``, run folders of ``gramian train``, or folders
            that hold several.
        output: where to write; made if it is not there.
    """
    results = gather([runs] if isinstance(runs, Path) else runs)
    output.mkdir(parents=True, exist_ok=True)
    drawn: list[Path] = []
    sections = []

    def add(grid: Grid, curves: Iterable[tuple[str, str, Figure]] = ()) -> None:
        images = []
        for name, alternative, figure in curves:
            paths = [output / "figures" / f"{name}.{end}" for end in ("png", "pdf")]
            for path in paths:
                save(figure, path)
            images.append(Image(paths[0], alternative))
            drawn.extend(paths)
        sections.append(Section(grid.key, grid.title, grid, tuple(images)))

    for table in results.tables:
        add(result_grid(table), table_curves(table))
    for grid in precision_grids(results.tables):
        add(grid)
    if results.plain_runs:
        add(plain_grid(results.plain_runs), plain_curves(results.plain_runs))
    for picture in results.pictures:
        image = Image(picture.path, picture.title)
        sections.append(Section(picture.key, picture.title, None, (image,)))
    grids = [section.grid for section in sections if section.grid is not None]
    is_of_paper = results.pictures or any(table.is_of_paper for table in results.tables)
    title = PAPER if is_of_paper else PLAIN
    texts = {
        "report.html": as_page(title, _facts(results), sections),
        "report.md": "\n".join([f"# {title}\n", *map(as_markdown, grids)]),
        "report.tex": "\n".join([PACKAGES, *map(as_latex, grids)]),
    }
    for name, text in texts.items():
        write_text_atomically(output / name, text)
    return [*(output / name for name in texts), *drawn]


def _facts(results: Results) -> list[str]:
    """Where the numbers come from."""
    commits = ", ".join(results.commits) or "unknown"
    scales = sorted({scale_name(table) for table in results.tables if table.is_of_paper})
    where = f"Tables of the paper: {', '.join(scales)}. " if scales else ""
    return [f"Made with gramian at {commits}.", f"{where}Click a heading to sort by it."]
