"""Figures to look at after a training run. Each function takes plain data and returns a figure.

``rows`` are the lines of ``metrics.jsonl``, one mapping per epoch. A key may be missing in some of
them; NaN leaves a gap in a line; of two rows of the same epoch the later one counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gramian.explained import MissingExtraError

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.colors import to_hex
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
except ImportError as error:
    raise MissingExtraError("a plot", "plots") from error

from gramian.experiments.plots.image_plots import certain_images as certain_images
from gramian.experiments.plots.image_plots import confusion_matrix as confusion_matrix
from gramian.experiments.plots.image_plots import inducing_patches as inducing_patches
from gramian.experiments.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    STYLE,
    epoch_axis,
    limit_line,
    log_axis,
)
from gramian.experiments.plots.style import Figure as Figure
from gramian.experiments.plots.style import save as save

Rows = Sequence[Mapping[str, Any]]
Curve = tuple[list[float], list[float]]  # epochs, values
MOST_POINTS = 500  # that one can tell apart in a panel
SPLITS = {"train": GREEN, "validation": ORANGE, "test": BLUE}


@matplotlib.rc_context(STYLE)
def learning_curves(rows: Rows) -> Figure:
    """Objective, accuracy or error, and log-likelihood over the epochs, as far as recorded.

    The legend gives last values. A panel whose first values are enormous has a linear axis for
    most values and a logarithmic one beyond, and says so.
    """
    objective = {
        "objective": ("objective", BLACK),
        "expected_log_likelihood": ("expected log-likelihood", RED),
    }
    accuracy, rmse, likelihood = (
        {f"{split}_{metric}": (split, colour) for split, colour in SPLITS.items()}
        for metric in ("accuracy", "rmse", "log_likelihood")
    )
    panels = [
        ("Objective", "nats per example", objective),
        ("Accuracy", "correct (%)", accuracy),
        ("Root mean squared error", "in units of the targets", rmse),
        ("Log-likelihood", "nats per example", likelihood),
    ]
    recorded = [p for p in panels if any(_is_drawable(_curve(rows, key)) for key in p[2])]
    if not recorded:
        return _nothing("no epoch recorded")
    figure = Figure(figsize=(4.2 * len(recorded), 3.4))
    for axes, (title, unit, lines) in zip(
        figure.subplots(1, len(recorded), squeeze=False)[0], recorded, strict=True
    ):
        percent = title == "Accuracy"
        everything: list[float] = []
        for key, (name, colour) in lines.items():
            epochs, values = _curve(rows, key)
            if _is_drawable((epochs, values)):
                values = [100 * v for v in values] if percent else values
                last = f"{values[-1]:.1f} %" if percent else _number(values[-1])
                _line(axes, (epochs, values), colour, f"{name} ({last})")
                everything += [v for v in values if math.isfinite(v)]
        axes.set(title=title, ylabel=unit)
        epoch_axis(axes)
        axes.legend()
        if not percent:
            _bend_axis(axes, np.array(everything))
    return figure


def condition_numbers(rows: Rows) -> Figure:
    """Condition number of each Gram matrix over the epochs, from keys ``condition/<layer>``."""
    figure = _by_layer(
        rows, "condition/", "Condition numbers of the Gram matrices", "condition number"
    )
    limit = 1 / float(np.finfo(np.float32).eps)
    for axes in figure.axes:
        if axes.get_yscale() == "log" and axes.get_ylim()[1] > 0.1 * limit:
            limit_line(axes, limit, "1/ε of float32")
    return figure


def kl_terms(rows: Rows) -> Figure:
    """KL term of each layer over the epochs, from keys ``kl/<layer>``. Zeros are not drawn."""
    return _by_layer(rows, "kl/", "KL terms of the layers", "KL (nats)")


@matplotlib.rc_context(STYLE)
def reliability_diagram(confidence: ArrayLike, accuracy: ArrayLike, count: ArrayLike) -> Figure:
    """Accuracy against confidence, with the gaps that the calibration error sums, and the counts.

    Args:
        confidence: mean confidence of each bin of equal width in [0, 1]; NaN if empty.
        accuracy: share of correct predictions in each bin; NaN if empty.
        count: predictions in each bin.
    """
    conf, acc, num = (_floats(x) for x in (confidence, accuracy, count))
    if not len(conf) == len(acc) == len(num) > 0:
        raise ValueError(f"bins must agree, got {len(conf)}, {len(acc)} and {len(num)} of them")
    full = num > 0
    conf, acc = np.where(full, conf, 0.0), np.where(full, acc, 0.0)
    share = num / max(num.sum(), 1.0)
    centre, width = (np.arange(len(num)) + 0.5) / len(num), 1 / len(num)
    figure = Figure(figsize=(4.6, 5.2))
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    top.bar(centre[full], acc[full], width, color=BLUE, edgecolor="white", label="accuracy")
    for part, colour, label in [
        (full & (conf > acc), "#F2CBB0", "confidence too high"),
        (full & (conf < acc), "#9FD0EE", "confidence too low"),
    ]:
        if part.any():
            gap, style = (conf - acc)[part], {"color": colour, "edgecolor": "white"}
            top.bar(centre[part], gap, width, acc[part], label=label, **style)
    top.plot([0, 1], [0, 1], color=BLACK, linestyle="--", linewidth=1, label="calibrated")
    ece = 100 * float((share * abs(conf - acc)).sum())
    right = 100 * float((share * acc).sum())
    parts = f"calibration error {ece:.2f} %, accuracy {right:.2f} %, n = {num.sum():,.0f}"
    top.set_title(f"Reliability\n{parts}")
    top.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
    top.legend(loc="upper left")
    bottom.bar(centre[full], num[full], width, color=GREY, edgecolor="white")
    bottom.set(xlabel="confidence", ylabel="examples")
    if full.any():
        bottom.set_ylim(0.5, 2 * num.max())
        log_axis(bottom)
    return figure


@matplotlib.rc_context(STYLE)
def predicted_against_true(true: ArrayLike, mean: ArrayLike, std: ArrayLike) -> Figure:
    """Predictions of a regression with ± 2 standard deviations, one panel per target.

    Args:
        true: targets, [N, T].
        mean: predicted means, [N, T].
        std: predicted standard deviations, [N, T].
    """
    y, m, s = (np.atleast_2d(_floats(x).T) for x in (true, mean, std))
    if not y.shape == m.shape == s.shape:
        raise ValueError(
            f"targets, means and deviations must agree, got {y.shape[::-1]}, "
            f"{m.shape[::-1]}, {s.shape[::-1]}"
        )
    T, N = y.shape
    columns = min(T, 3)
    rows = math.ceil(T / columns)
    figure = Figure(figsize=(4.2 * columns, 4.4 * rows))
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[T:]:
        axes.set_axis_off()
    shown = np.linspace(0, N - 1, min(N, MOST_POINTS)).astype(int)
    for k, axes in enumerate(panels[:T]):
        some = np.argsort(y[k])[shown]
        points = (y[k][some], m[k][some], 2 * s[k][some])
        colours = {"color": BLUE, "ecolor": "#9FC8E0"}
        axes.errorbar(*points, fmt="o", ms=3, lw=0.7, label="mean ± 2 std", **colours)
        ends = [float(y[k].min()), float(y[k].max())]
        axes.plot(ends, ends, color=BLACK, linestyle="--", linewidth=1, label="exact")
        rmse = math.sqrt(float(np.mean((y[k] - m[k]) ** 2)))
        inside = 100 * float(np.mean(abs(y[k] - m[k]) <= 2 * s[k]))
        name = "Predicted against true" if T == 1 else f"Target {k + 1}"
        axes.set_title(f"{name}\nRMSE {rmse:.4g}, {inside:.1f} % within ± 2 std, n = {N:,}")
        drawn = "" if len(shown) == N else f" ({len(shown):,} of {N:,} points drawn)"
        axes.set(xlabel=f"true{drawn}", ylabel="predicted")
        axes.legend(loc="upper left")
    return figure


def _by_layer(rows: Rows, prefix: str, title: str, unit: str) -> Figure:
    """One line per layer, coloured by depth: the order in which keys first appear."""
    keys = list(dict.fromkeys(key for row in rows for key in row if key.startswith(prefix)))
    curves = {}
    for key in keys:
        epochs, values = _curve(rows, key)
        positive = [v if v > 0 else math.nan for v in values]
        if _is_drawable((epochs, positive)):
            curves[key.removeprefix(prefix)] = (epochs, positive)
    if not curves:
        return _nothing(f"no {prefix}… recorded")
    with matplotlib.rc_context(STYLE):
        columns = math.ceil(len(curves) / 22)
        figure = Figure(figsize=(5.6 + 1.8 * columns, 4.2))
        axes = figure.subplots()
        colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.92, len(curves)))
        for colour, (name, curve) in zip(colours, curves.items(), strict=True):
            _line(axes, curve, to_hex(colour), name)
        log_axis(axes)
        axes.set(title=title, ylabel=unit)
        epoch_axis(axes)
        figure.legend(
            loc="outside right upper",
            ncols=columns,
            fontsize=7,
            labelspacing=0.3,
            title="layer, from input to output",
            title_fontsize=7,
        )
    return figure


def _curve(rows: Rows, key: str) -> Curve:
    """Epochs and values of one key; infinite values become NaN, what is no number is left out."""
    points: dict[float, float] = {}
    for index, row in enumerate(rows):
        value = row.get(key)
        if isinstance(value, int | float):
            finite = math.isfinite(value)
            points[float(row.get("epoch", index))] = float(value) if finite else math.nan
    epochs = sorted(points)
    return epochs, [points[epoch] for epoch in epochs]


def _is_drawable(curve: Curve) -> bool:
    return any(math.isfinite(value) for value in curve[1])


def _line(axes: Axes, curve: Curve, colour: str, label: str) -> None:
    marker = "o" if len(curve[0]) <= 15 or math.isnan(sum(curve[1])) else ""
    axes.plot(*curve, color=colour, label=label, marker=marker)


def _bend_axis(axes: Axes, values: NDArray[np.float64]) -> None:
    """Make the axis logarithmic beyond the usual values, if some are enormous beside them."""
    usual, most = float(np.median(abs(values))), float(abs(values).max())
    if usual == 0 or most < 30 * usual:
        return
    edge = float(f"{5 * usual:.0e}")
    sign = -1 if -values.min() > values.max() else 1
    axes.set_yscale("symlog", linthresh=edge, linscale=1.5 * math.log10(most / edge))
    low, high = max(float(values.min()), -edge), min(float(values.max()), edge)
    linear = [tick for tick in MaxNLocator(5).tick_values(low, high) if abs(tick) <= edge]
    decades = range(math.ceil(math.log10(3 * edge)), math.ceil(math.log10(most)) + 1)
    step = math.ceil(len(decades) / 5)
    powers = {sign * 10.0**k: f"${'−' if sign < 0 else ''}10^{{{k}}}$" for k in decades[::-step]}
    axes.yaxis.set_major_locator(FixedLocator([*linear, *powers]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: powers.get(y, _number(y))))
    axes.axhline(sign * edge, color=GREY, linestyle=":", linewidth=1)
    side = "below" if sign < 0 else "above"
    axes.set_ylabel(f"{axes.get_ylabel()} (log {side} {_number(sign * edge)})")


def _number(value: float) -> str:
    text = f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"
    return text.replace("-", "−")


def _nothing(message: str) -> Figure:
    figure = Figure(figsize=(4, 2))
    axes = figure.subplots()
    axes.set_axis_off()
    axes.text(0.5, 0.5, message, ha="center", va="center", color=GREY)
    return figure


def _floats(values: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)
