"""Draw a figure on condition numbers: ours as lines, the published ones as points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from gramian.explained import MissingExtraError
from paper.conditions.sweep import Figure, Panel, Published, load_published

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure as Drawing
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullLocator
except ImportError as error:
    raise MissingExtraError("a plot", "plots") from error

from gramian.experiments.plots.style import BLACK, STYLE, epoch_axis, limit_line, log_axis, save

LIMIT = 1 / float(np.finfo(np.float64).eps)  # beyond it, a condition number is round-off
PUBLISHED: Any = {"marker": "o", "markersize": 4.5, "linestyle": "", "markeredgecolor": "white"}
PRINTED: Any = {"marker": "x", "markersize": 4.5, "linestyle": ""}


def save_figure(figure: Figure, folder: Path) -> None:
    """Write ``figure.png`` and ``figure.pdf`` from the ``conditions.json`` of all curves."""
    drawing = draw_figure(figure, folder)
    for name in ("figure.png", "figure.pdf"):
        save(drawing, folder / name)


@matplotlib.rc_context(STYLE)
def draw_figure(figure: Figure, folder: Path) -> Drawing:
    """All panels side by side, with logarithmic axes. Epochs count from 1 here."""
    num_panels, published = len(figure.panels), load_published()
    drawing = Drawing(figsize=(4.4 * num_panels if num_panels > 1 else 6.4, 5.4))
    row = drawing.subplots(1, num_panels, sharey=True, squeeze=False)[0]
    for axes, panel in zip(row, figure.panels, strict=True):
        draw_panel(axes, panel, folder / panel.key, published)
    row[0].set_ylabel("condition number of $G_{ii}$")
    return drawing


def draw_panel(axes: Axes, panel: Panel, folder: Path, published: dict[str, Published]) -> None:
    """One panel, with its legend below."""
    results = [json.loads((folder / c.key / "conditions.json").read_text()) for c in panel.curves]
    last = max(len(result["condition_numbers"]) for result in results)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(results)))
    keys = [Line2D([], [], color=BLACK, label="published", **PUBLISHED)]
    if panel.printed is not None:
        keys.append(Line2D([], [], color=BLACK, label="as printed in the paper", **PRINTED))
    for curve, result, colour in zip(panel.curves, results, map(to_hex, colours), strict=True):
        numbers, failure = np.array(result["condition_numbers"], np.float64), result["failure"]
        label = curve.label if failure is None else f"{curve.label} (fails)"
        epochs = np.arange(1, len(numbers) + 1)
        axes.plot(epochs, numbers, color=colour, linewidth=0.5, alpha=0.4)
        meant = np.where(numbers < LIMIT, numbers, np.nan)
        keys += axes.plot(epochs, meant, color=colour, linewidth=1.2, label=label)
        _points(axes, published[panel.published], curve.published, last, colour, PUBLISHED)
        if panel.printed is not None:
            _points(axes, published[panel.printed], curve.published, last, colour, PRINTED)
    axes.set_title(panel.title)
    epoch_axis(axes, is_log=True)
    log_axis(axes)
    if axes.get_ylim()[1] > 1e6 * axes.get_ylim()[0]:
        axes.yaxis.set_major_locator(LogLocator(base=1000, numticks=20))
        axes.yaxis.set_minor_locator(NullLocator())
    if axes.get_ylim()[1] > LIMIT:
        limit_line(axes, LIMIT, "1/ε of float64")
    axes.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)


def _points(
    axes: Axes, published: Published, row: str, last: int, colour: str, style: dict[str, Any]
) -> None:
    """The published condition numbers of the epochs that are drawn."""
    pairs = zip(published.epochs, published.rows[row], strict=True)
    points = [(epoch + 1, number) for epoch, number in pairs if epoch < last]
    axes.plot(*zip(*points, strict=True), color=colour, zorder=3, **style)
