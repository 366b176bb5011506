"""The parts of a training step as bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.bench_text import part_seconds
from gramian.experiments.plots.style import BLUE, GREY, ORANGE, STYLE


@matplotlib.rc_context(STYLE)
def parts_figure(result: Mapping[str, Any]) -> Figure:
    """Time of each part, forward and backward, with its FLOPs; the longest on top."""
    parts = sorted(result["parts"].items(), key=lambda item: part_seconds(item[1]))
    names = [name for name, _ in parts]
    forward = [1e3 * part["seconds_forward"] for _, part in parts]
    backward = [1e3 * part["seconds_backward"] for _, part in parts]
    figure = Figure(figsize=(6.4, 3.6))
    axes = figure.subplots()
    axes.barh(names, forward, color=BLUE, label="forward")
    axes.barh(names, backward, left=forward, color=ORANGE, label="backward, optimiser")
    for place, (_, part) in enumerate(parts):
        text = f"  {part['flops'] / 1e9:.3g} GFLOP" if part["flops"] else ""
        axes.text(1e3 * part_seconds(part), place, text, va="center", fontsize=7, color=GREY)
    axes.margins(x=0.2)
    axes.set(xlabel="milliseconds", xlim=(0, None))
    axes.set_title(
        f"Training step of a DKM: {', '.join(map(str, result['widths']))} inducing points, "
        f"{result['batch']} images"
    )
    axes.grid(visible=False, axis="y")
    axes.legend(loc="lower right")
    return figure
