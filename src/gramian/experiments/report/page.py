"""One HTML file with everything inside: tables that can be sorted, and pictures."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path

from gramian.experiments.report.grids import Cell, Grid, Line

# Nothing may be loaded from anywhere, whatever a label contains.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class Image:
    """A picture, and what it says to those who do not see it."""

    path: Path
    alternative: str


@dataclass(frozen=True)
class Section:
    """A table or none, and pictures."""

    key: str
    title: str
    grid: Grid | None
    images: tuple[Image, ...]


def as_page(title: str, facts: Sequence[str], sections: Sequence[Section]) -> str:
    """The page: what it is, where to find what, and the sections."""
    links = "\n".join(
        f'<li><a href="#{_id(section.key)}">{escape(section.title)}</a></li>'
        for section in sections
    )
    lines = "\n".join(f'<p class="muted">{escape(fact)}</p>' for fact in facts)
    body = "\n".join(map(_section, sections))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{_resource("page.css")}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
{lines}
<nav aria-label="Contents"><ul>
{links}
</ul></nav>
</header>
<main>
{body}
</main>
<script>
{_resource("page.js")}</script>
</body>
</html>
"""


def _section(section: Section) -> str:
    name = _id(section.key)
    parts = [f'<section id="{name}" aria-labelledby="{name}-title">']
    parts += [f'<h2 id="{name}-title">{escape(section.title)}</h2>']
    if section.grid is not None:
        parts += _grid(section.grid, f"{name}-title")
    if section.images:
        kind = "figures" if len(section.images) > 1 else "wide"
        parts += [f'<div class="{kind}">', *map(_image, section.images), "</div>"]
    return "\n".join([*parts, "</section>"])


def _grid(grid: Grid, title: str) -> list[str]:
    parts = [f'<p class="muted">{escape(grid.subtitle)}</p>']
    parts += [f'<p class="warning" role="note">{escape(text)}</p>' for text in grid.warnings]
    parts += [_table(grid, title), f'<ul class="notes">\n{_items(grid.notes)}\n</ul>']
    if grid.failures:
        parts += [f"<details><summary>Failures ({len(grid.failures)})</summary>"]
        parts += [f"<ul>\n{_items(grid.failures)}\n</ul></details>"]
    return parts


def _table(grid: Grid, title: str) -> str:
    heads = "\n".join(
        f'<th scope="col" aria-sort="none"><button type="button">{escape(text)}</button></th>'
        for text in grid.headings
    )
    rows = "\n".join(map(_row, grid.lines))
    return f"""<div class="scroll" role="region" aria-labelledby="{title}" tabindex="0">
<table class="sortable">
<thead><tr>
{heads}
</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>"""


def _row(line: Line) -> str:
    mark = ' class="quoted"' if line.quoted else ""
    label = escape(line.label) + (" †" if line.quoted else "")
    note = f"<small>{escape(line.note)}</small>" if line.note else ""
    cells = "".join(map(_cell, line.cells))
    order = escape(line.label.casefold())
    return f'<tr{mark}><th scope="row" data-order="{order}">{label}{note}</th>{cells}</tr>'


def _cell(cell: Cell) -> str:
    order = "" if cell.order is None else repr(float(cell.order))
    text = re.sub(r" (?=±|unfinished)|(?<=[±<]) |(?<=epoch) |(?<=epochs) ", "\u00a0", cell.text)
    return f'<td data-order="{order}">{escape(text)}</td>'


def _items(texts: Sequence[str]) -> str:
    return "\n".join(f"<li>{escape(text)}</li>" for text in texts)


def _image(image: Image) -> str:
    data = base64.b64encode(image.path.read_bytes()).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{escape(image.alternative)}">'


def _id(key: str) -> str:
    return "s-" + "".join(c if c.isalnum() and c.isascii() else "-" for c in key)


def _resource(name: str) -> str:
    return (resources.files("gramian.experiments.report") / name).read_text(encoding="utf-8")
