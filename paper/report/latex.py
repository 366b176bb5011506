"""Tables as LaTeX, for the packages booktabs and graphicx."""

from __future__ import annotations

import re
from collections.abc import Sequence

from paper.report.grids import Grid
from paper.report.markdown import label

PACKAGES = r"% needs \usepackage{booktabs,graphicx}"
SHRINK = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"  # if too wide
SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "∞": r"$\infty$",
    "√": r"$\surd$",
    "ℓ": r"$\ell$",
    "γ": r"$\gamma$",
    "λ": r"$\lambda$",
    "ν": r"$\nu$",
    "†": r"$^{\dagger}$",
    "–": "--",
    "—": "---",
    "“": "``",
    "”": "''",
    "’": "'",
    "…": r"\ldots{}",
}


def as_latex(grid: Grid) -> str:
    """A table environment over both columns, made smaller if it is wider than the text."""
    width = len(grid.headings)
    body = [_row([label(line), *(cell.text for cell in line.cells)]) for line in grid.lines]
    if any(line.quoted for line in grid.lines):
        body.insert(sum(not line.quoted for line in grid.lines), r"\midrule")
    notes = " ".join(map(escape, (*grid.warnings, *grid.notes)))
    title = re.sub(r"^Table (?=\d)", "The paper’s Table ", grid.title)  # LaTeX counts by itself
    parts = [
        r"\begin{table*}[t]",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        SHRINK,
        r"\begin{tabular}{l" + "r" * (width - 1) + "}",
        r"\toprule",
        " & ".join(map(_heading, grid.headings)) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        rf"\caption{{{escape(title)} ({escape(grid.subtitle)}). {notes}}}",
        rf"\label{{tab:{re.sub(r'[^A-Za-z0-9-]', '-', grid.key)}}}",
        r"\end{table*}",
    ]
    return "\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that LaTeX sets as it is."""
    return "".join(SPECIAL.get(character, character) for character in " ".join(text.split()))


def _heading(text: str) -> str:
    """A heading over as many lines as it has parts between commas."""
    lines = r" \\ ".join(escape(part) for part in text.split(", "))
    return rf"\shortstack{{{lines}}}"


def _row(cells: Sequence[str]) -> str:
    return " & ".join(map(escape, cells)) + r" \\"
