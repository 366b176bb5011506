"""Figures made of pixels: confusion matrix, certain and uncertain predictions, inducing patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import PowerNorm
from numpy.typing import ArrayLike, NDArray

from gramian.experiments.plots.style import BLACK, GREY, STYLE, Figure, class_labels

WRONG = "#C00000"


@matplotlib.rc_context(STYLE)
def confusion_matrix(counts: ArrayLike, class_names: Sequence[str]) -> Figure:
    """Counts of true class (row) × predicted class, coloured by the share of the row.

    Up to 20 classes have their counts written in; above 120, only some names.
    """
    table = np.asarray(counts, dtype=np.float64)
    C = len(class_names)
    if table.shape != (C, C):
        raise ValueError(f"counts must be {C}×{C} for {C} class names, got {table.shape}")
    share = 100 * table / table.sum(1, keepdims=True).clip(min=1)
    side = min(max(0.5 * C, 3.0), 11.0)
    figure = Figure(figsize=(side + 1.8, side + 1.0))
    axes = figure.subplots()
    # The square root shows a few per cent of mistakes beside a diagonal of nearly 100.
    norm = PowerNorm(0.5, 0, 100)
    image = axes.imshow(share, cmap="Blues", norm=norm, interpolation="nearest")
    step = math.ceil(C / 120)
    size = min(8.0, 0.75 * 72 * side * step / C)
    labels = class_labels(class_names)
    ticks, names = range(0, C, step), labels.texts[::step]
    turn = (
        {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if C <= 20 else {"rotation": 90}
    )
    text: Any = {"fontsize": size, "parse_math": False, "fontfamily": labels.fonts}
    axes.set_xticks(ticks, names, **text, **turn)
    axes.set_yticks(ticks, names, **text)
    if labels.note:
        figure.supxlabel(labels.note, fontsize=7.5, color=GREY)
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.grid(False)
    total = table.sum()
    right = 100 * float(np.trace(table)) / max(total, 1.0)
    axes.set_title(f"Confusion matrix\naccuracy {right:.2f} %, n = {total:,.0f}")
    if C <= 20:
        for (i, j), n in np.ndenumerate(table):
            colour = "white" if share[i, j] > 35 else BLACK if n else GREY
            axes.text(j, i, f"{n:.0f}", ha="center", va="center", color=colour, fontsize=7)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, ticks=[0, 1, 5, 20, 50, 100])
    bar.set_label("share of the true class (%)")
    return figure


@matplotlib.rc_context({**STYLE, "axes.grid": False})
def certain_images(
    images: ArrayLike,
    labels: ArrayLike,
    probabilities: ArrayLike,
    class_names: Sequence[str],
    count: int = 8,
) -> Figure:
    """The images with the most and the least certain predictions: true class → prediction.

    Args:
        images: [N, C, H, W], uint8 or floating point.
        labels: true classes, [N].
        probabilities: predicted probabilities, [N, classes].
        class_names: names of the classes.
        count: images in a row, or N if that is less.
    """
    pixels, y, p = np.asarray(images), np.asarray(labels), np.asarray(probabilities)
    if not len(pixels) == len(y) == len(p) > 0:
        raise ValueError(
            f"images, labels and probabilities must agree, got {len(pixels)}, {len(y)}, {len(p)}"
        )
    whole = pixels.dtype == np.uint8
    low, high = (0.0, 255.0) if whole else (float(pixels.min()), float(pixels.max()))
    predicted, confidence = p.argmax(1), p.max(1)
    order = np.argsort(-confidence, kind="stable")
    columns = min(count, len(order))
    figure = Figure(figsize=(max(1.25 * columns + 0.6, 3.5), 3.7))
    grid = figure.subplots(2, columns, squeeze=False)
    shown = class_labels(class_names, width=16)
    rows = {"most certain": order[:columns], "least certain": order[::-1][:columns]}
    for axes_row, (title, chosen) in zip(grid, rows.items(), strict=True):
        axes_row[0].set_ylabel(title)
        for axes, n in zip(axes_row, chosen, strict=True):
            axes.imshow(_for_display(pixels[n], low, high), interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            names = [shown.texts[k] for k in (y[n], predicted[n])]
            text = f"{names[0]}\n→ {names[1]}\n{100 * confidence[n]:.1f} %"
            colour = BLACK if y[n] == predicted[n] else WRONG
            style: Any = {"fontsize": 7.5, "color": colour, "fontfamily": shown.fonts}
            axes.set_title(text, parse_math=False, **style)
    note = "true class → predicted class, its probability; mistakes in red"
    note += f"\n{shown.note}" if shown.note else ""
    figure.supxlabel(note, fontsize=7.5, color=GREY)
    return figure


@matplotlib.rc_context({**STYLE, "axes.grid": False})
def inducing_patches(patches: ArrayLike) -> Figure:
    """A grid of up to 64 inducing patches [P, C, f, f], grey or RGB.

    All have one scale, from the 1st to the 99th percentile.
    """
    everything = np.asarray(patches, dtype=np.float64)
    if everything.ndim != 4 or len(everything) == 0:
        raise ValueError(f"patches must have shape (P, C, f, f), got {everything.shape}")
    shown = everything[:64]
    finite = shown[np.isfinite(shown)]
    low, high = np.percentile(finite, [1, 99]) if finite.size else (0.0, 1.0)
    columns = math.ceil(math.sqrt(len(shown)))
    figure = Figure(figsize=(4.2, 4.2 * math.ceil(len(shown) / columns) / columns + 0.3))
    axes = figure.subplots()
    axes.imshow(_mosaic([_for_display(patch, low, high) for patch in shown], columns))
    axes.set_axis_off()
    P, f = len(everything), everything.shape[2]
    number = f"{len(shown)} of {P}" if len(shown) < P else f"{P}"
    axes.set_title(f"Inducing patches\n{number}, {f}×{f} pixels each")
    return figure


def _for_display(image: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    """[C, H, W] → RGB [H, W, 3] in [0, 1]; other than three channels become their grey mean."""
    image = image if len(image) == 3 else np.repeat(image.mean(0, keepdims=True), 3, axis=0)
    scaled = (image - low) / max(high - low, 1e-12)
    return np.nan_to_num(scaled, posinf=1.0, neginf=0.0).clip(0, 1).transpose(1, 2, 0)


def _mosaic(tiles: list[NDArray[np.float64]], columns: int) -> NDArray[np.float64]:
    """Tiles of the same size in a white grid, each pixel enlarged to about 24 pixels a tile."""
    zoom = max(24 // len(tiles[0]), 1)
    large = [np.kron(tile, np.ones((zoom, zoom, 1))) for tile in tiles]
    height, width = (size + 4 for size in large[0].shape[:2])
    canvas = np.ones((math.ceil(len(large) / columns) * height, columns * width, 3))
    for n, tile in enumerate(large):
        top, left = n // columns * height, n % columns * width
        canvas[top : top + height - 4, left : left + width - 4] = tile
    return canvas
