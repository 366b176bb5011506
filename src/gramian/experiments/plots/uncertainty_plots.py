"""Figures on what a classifier knows of what it does not know. Plain data in, a figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np

from gramian.experiments.plots.style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    STYLE,
    Figure,
    class_labels,
    one_line,
    set_title,
    without_middle,
)
from gramian.metrics import Array, Calibration, RiskCoverage, detection


@matplotlib.rc_context(STYLE)
def unlike_histograms(
    like: Mapping[str, Array], unlike: Mapping[str, Array], titles: Mapping[str, str], name: str
) -> Figure:
    """One panel per score: its values for data like the training set, and for data unlike it."""
    shown = [score for score in like if score in unlike]
    name = without_middle(one_line(Path(name).name), 24)
    figure = Figure(figsize=(3.1 * max(len(shown), 1), 3.1))
    set_title(figure, f"Is {name} unlike the training data?")
    for axes, score in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        both = np.concatenate([like[score], unlike[score]])
        low, high = float(both.min()), float(np.quantile(both, 0.995))
        bins = np.linspace(low, high, 41).tolist()
        for values, colour, label in ((like, BLUE, "test set"), (unlike, ORANGE, name)):
            clipped = np.minimum(values[score], bins[-1])
            share = np.full(len(clipped), 100 / len(clipped))
            axes.hist(clipped, bins, weights=share, color=colour, alpha=0.6, label=label)
        auroc = detection(like[score], unlike[score]).auroc
        axes.set_title(f"{titles[score]}\nAUROC {auroc:.3f}", fontsize=9)
        axes.set_ylabel("share of images (%)")
        axes.legend(loc="upper right")
    return figure


@matplotlib.rc_context(STYLE)
def risk_coverage_curve(curve: RiskCoverage) -> Figure:
    """Errors that are left when the least certain predictions are left out."""
    figure = Figure(figsize=(4.2, 3.4))
    axes = figure.subplots()
    axes.plot(100 * curve.coverage, 100 * curve.risk, color=BLUE, label="by largest probability")
    axes.axhline(100 * curve.risk[-1], color=GREY, linestyle="--", linewidth=1, label="at random")
    axes.set(
        title=f"Risk against coverage (area {curve.area:.4f})",
        xlabel="predictions kept (%), the most certain first",
        ylabel="errors among them (%)",
        xlim=(0, 100),
    )
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


@matplotlib.rc_context(STYLE)
def calibration_by_class(
    equal_mass: Calibration, errors: Sequence[float], class_names: Sequence[str]
) -> Figure:
    """Accuracy in bins of equal mass, and the calibration error of each class's probability."""
    labels = class_labels(class_names)
    tall = max(3.4, 0.22 * len(errors))
    figure = Figure(figsize=(8, tall))
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], [0, 1], color=BLACK, linestyle="--", linewidth=1, label="calibrated")
    left.plot(equal_mass.confidence, equal_mass.accuracy, "o-", color=BLUE, label="accuracy")
    left.set(
        title=f"Bins of equal mass: error {100 * equal_mass.error:.2f} %",
        xlabel="confidence",
        ylabel="accuracy",
    )
    left.legend()
    places = np.arange(len(errors))
    right.barh(places, 100 * np.asarray(errors), color=BLUE)
    right.set_yticks(places, labels.texts, fontfamily=labels.fonts, parse_math=False)
    right.invert_yaxis()
    right.set(title="Each class's own probability", xlabel=f"calibration error (%) {labels.note}")
    return figure
