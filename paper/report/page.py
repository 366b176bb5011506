"""One HTML file with everything inside: tables that can be sorted, and pictures."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gramian.experiments.web_page import render
from paper.report.grids import Cell, Grid


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
    return render(
        str(__package__),
        "page.html.j2",
        "page.css",
        "page.js",
        {"id": _id, "order": _order, "unbroken": _unbroken, "base64": _base64},
        title=title,
        facts=facts,
        sections=sections,
    )


def _id(key: str) -> str:
    return "s-" + re.sub(r"[^A-Za-z0-9]", "-", key)


def _order(cell: Cell) -> str:
    return "" if cell.order is None else repr(float(cell.order))


def _unbroken(text: str) -> str:
    """No line ends between a mean and its error, or between a number and what it counts."""
    return re.sub(r" (?=±|unfinished)|(?<=[±<]) |(?<=epoch) |(?<=epochs) ", "\u00a0", text)


def _base64(image: Image) -> str:
    return base64.b64encode(image.path.read_bytes()).decode()
