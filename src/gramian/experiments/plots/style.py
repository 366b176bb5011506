"""What all figures share: colours, files, text that any font can show, and logarithmic axes."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gramian.explained import MissingExtraError

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Figure
    from matplotlib.font_manager import fontManager, get_font
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
except ImportError as error:
    raise MissingExtraError("a plot", "plots") from error

from gramian.train.record.files import write_atomically

# The colours of Okabe and Ito, which colour-blind people can tell apart.
BLACK, GREY = "#222222", "#8C8C8C"
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
FONT = "DejaVu Sans"  # comes with matplotlib
STYLE: Any = {
    "font.family": [FONT],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": BLACK,
    "ytick.labelcolor": BLACK,
    "figure.facecolor": "white",
    "axes.formatter.useoffset": False,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
}


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG (150 dots per inch) or PDF, complete or not at all.

    The same figure gives the same bytes each time.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"CreationDate": None} if path.suffix == ".pdf" else None
    options: dict[str, Any] = {"dpi": 150, "format": path.suffix[1:], "metadata": metadata}
    write_atomically(path, lambda file: figure.savefig(file, **options))


# ---- names that users chose ----


@dataclass(frozen=True)
class Labels:
    """Texts that can be shown, the fonts that they need, and what a reader must know about them."""

    texts: list[str]
    fonts: list[str]
    note: str = ""


def class_labels(names: Sequence[str], width: int = 24) -> Labels:
    """Names of classes on one line each; what is longer than ``width`` loses its middle.

    A name that is shortened has the number of its class before it. A name that no font of this
    system can show becomes that number.
    """
    flat = [one_line(name) for name in names]
    fonts = fonts_for(flat)
    missing = _missing(flat, fonts)
    is_shown = [bool(text) and missing.isdisjoint(map(ord, text)) for text in flat]
    texts = [
        _shorten(text, k, width) if shown else f"class {k}"
        for k, (text, shown) in enumerate(zip(flat, is_shown, strict=True))
    ]
    note = "" if all(is_shown) else "numbers stand for names that no installed font can show"
    return Labels(texts, fonts, note)


def set_title(figure: Figure, text: str) -> None:
    """A title above all panels; characters that no installed font has become question marks."""
    flat = one_line(text)
    fonts = fonts_for([flat])
    missing = _missing([flat], fonts)
    shown = "".join("?" if ord(c) in missing else c for c in flat)
    figure.suptitle(without_middle(shown, 90), fontsize=10, parse_math=False, fontfamily=fonts)


def one_line(text: str) -> str:
    """Without line ends and without characters that have no shape."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())


def fonts_for(texts: Iterable[str]) -> list[str]:
    """Our font, and installed ones that have the characters that it lacks, if there are any."""
    fonts, missing = [FONT], _missing(texts, [FONT])
    while missing:
        covered = {name: missing & _characters(path) for name, path in _installed().items()}
        best = max(covered, key=lambda name: len(covered[name]))
        if not covered[best]:
            break
        fonts.append(best)
        missing -= covered[best]
    return fonts


def _missing(texts: Iterable[str], fonts: Sequence[str]) -> set[int]:
    paths = _installed()
    known = frozenset[int]().union(*(_characters(paths[name]) for name in fonts))
    return {ord(c) for text in texts for c in text} - known


def _installed() -> dict[str, str]:
    """Upright fonts by name, without the one that has a box for every character."""
    upright = [font for font in fontManager.ttflist if (font.style, font.weight) == ("normal", 400)]
    return {f.name: f.fname for f in sorted(upright, key=str) if "Last Resort" not in f.name}


@cache
def _characters(path: str) -> frozenset[int]:
    """Code points of a font; none if matplotlib cannot draw it, as coloured bitmaps."""
    try:
        font = get_font(path)
    except (OSError, RuntimeError):
        return frozenset()
    return frozenset(font.get_charmap()) if font.scalable else frozenset()


def _shorten(text: str, number: int, width: int) -> str:
    if _columns(text) <= width:
        return text
    prefix = f"{number}: "
    return prefix + without_middle(text, width - len(prefix))


def without_middle(text: str, width: int) -> str:
    """The text, or its beginning and its end with … between."""
    if _columns(text) <= width:
        return text
    begin = end = ""
    for first, last in zip(text, reversed(text), strict=True):
        if _columns(begin + first + last + end) >= width:
            break
        begin, end = begin + first, last + end
    return f"{begin}…{end}"


def _columns(text: str) -> int:
    """Width in a font of fixed width: Chinese, Japanese and Korean characters take two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


# ---- axes ----


def epoch_axis(axes: Axes, is_log: bool = False) -> None:
    """Whole epochs along x."""
    if is_log:
        log_axis(axes, "x")
        axes.xaxis.set_major_formatter("{x:.0f}")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch (logarithmic)" if is_log else "epoch")


def log_axis(axes: Axes, which: str = "y") -> None:
    """A logarithmic axis that has a few plain ticks, also if it is shorter than a decade."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axes.set_yscale("log") if which == "y" else axes.set_xscale("log")
    get, set_limits = getattr(axes, f"get_{which}lim"), getattr(axes, f"set_{which}lim")
    low, high = get()
    if high <= 1.2 * low:  # one value
        set_limits(low := low / 1.5, high := high * 1.5)
    if high > 100 * low:
        return
    if high > 4 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    else:
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=which == "x"))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axis.set_minor_formatter(NullFormatter())


def limit_line(axes: Axes, limit: float, text: str) -> None:
    """A dashed line across, with its name."""
    axes.axhline(limit, color=GREY, linestyle="--", linewidth=1)
    note = axes.text(0.02, limit, text, transform=axes.get_yaxis_transform(), fontsize=7)
    note.set(va="center", bbox={"color": "white", "pad": 1})
