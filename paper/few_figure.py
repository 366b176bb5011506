"""Few images: accuracy and log-likelihood against the number of training images, as one plot.

`python -m paper few --output results --jobs 2`, then `python -m paper.few_figure
results/few-small docs/images/few.png`. Points are means over the seeds, bars standard errors.
"""

import json
import math
import sys
from pathlib import Path
from statistics import mean, stdev

from matplotlib import rc_context

from gramian.experiments.plots.style import BLUE, GREEN, GREY, ORANGE, STYLE, Figure, save
from paper.registry import FEW

MODELS = {
    "skr": ("DKM with SKR", BLUE, "o-"),
    "plain": ("DKM, no sampling", GREEN, "s-"),
    "muon": ("network, Muon", ORANGE, "^-"),
    "muon_stop": ("network, Muon, early stopping", ORANGE, "^:"),
    "sgd": ("network, SGD", GREY, "v-"),
    "sgd_stop": ("network, SGD, early stopping", GREY, "v:"),
}
FIGURES = {"accuracy": "test accuracy", "log_likelihood": "test log-likelihood"}


def results(folder: Path, model: str, size: int) -> list[dict[str, float]]:
    """Test metrics of all seeds."""
    name = "headline" if (model, size) == ("skr", 1000) else f"{model}_{size}"
    files = sorted((folder / name).glob("seed*/result.json"))
    return [json.loads(file.read_text())["metrics"]["test"] for file in files]


def draw(folder: Path) -> Figure:
    """Two panels, a line for each model, and the same figures in Markdown on standard output."""
    figure = Figure(figsize=(8, 3.6))
    panels = figure.subplots(1, 2)
    for panel, (figure_name, label) in zip(panels, FIGURES.items(), strict=True):
        print(
            f"\n| {label} | {' | '.join(f'{size:,}' for size in FEW)} |\n|---|{'---|' * len(FEW)}"
        )
        for model, (title, colour, form) in MODELS.items():
            points = []
            for size in FEW:
                values = [result[figure_name] for result in results(folder, model, size)]
                error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
                if values:
                    points.append((size, mean(values), error))
            print(f"| {title} | " + " | ".join(f"{m:.3f} ± {e:.3f}" for _, m, e in points) + " |")
            if points:
                x, y, bars = zip(*points, strict=True)
                panel.errorbar(x, y, bars, fmt=form, color=colour, label=title, capsize=2)
        panel.set(xscale="log", xlabel="training images", ylabel=label)
        panel.set_xticks(list(FEW), [f"{size:,}" for size in FEW])
        panel.minorticks_off()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


if __name__ == "__main__":
    with rc_context(STYLE):
        save(draw(Path(sys.argv[1])), sys.argv[2])
