"""How the cost of a training step grows with the batch and with the widths.

    python -m benchmarks.scaling docs/images/scaling.png

Both axes are logarithmic. With the batch, the slope must be 1. With the widths, the data's products
have slope 2 and the inducing chain has slope 3; the counted FLOPs show both.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median

import matplotlib as mpl
import numpy as np
import torch

from benchmarks.flops import count_flops
from benchmarks.subjects import DKMSubject
from gramian.train.runtime.memory import keep_freed_memory

mpl.use("Agg")
from matplotlib import pyplot as plt

BATCHES, WIDTHS, REPEATS = (32, 64, 128, 256), (8, 16, 32, 64, 128), 3


def step_cost(width: int, batch: int) -> tuple[float, float]:
    """Median seconds and counted FLOPs of a training step."""
    subject = DKMSubject((width, 2 * width, 4 * width))
    data = subject.batch(batch)
    for _ in range(2):
        subject.step(data)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        subject.step(data)
        times.append(time.perf_counter() - start)
    return median(times), count_flops(lambda: subject.step(data))


def slope(x: tuple[int, ...], y: list[float], last: int) -> float:
    """Of the last points, on logarithmic axes."""
    return float(np.polyfit(np.log(x[-last:]), np.log(y[-last:]), 1)[0])


def main(path: Path) -> None:
    """Measure, print and plot."""
    torch.set_num_threads(2)
    keep_freed_memory()
    by_batch = [step_cost(32, batch) for batch in BATCHES]
    by_width = [step_cost(width, 128) for width in WIDTHS]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    panels = [
        (axes[0], BATCHES, by_batch, 1, "images in a batch (widths 32-64-128)"),
        (axes[1], WIDTHS, by_width, 2, "inducing points of the first stage (128 images)"),
    ]
    slopes = {}
    for axis, x, costs, theory, label in panels:
        seconds, flops = ([cost[part] for cost in costs] for part in (0, 1))
        slopes[label] = {"time": slope(x, seconds, 3), "FLOPs": slope(x, flops, 3)}
        axis.loglog(x, seconds, "o-", label="seconds of a training step")
        axis.loglog(x, [f / 1e11 for f in flops], "s--", label="counted FLOPs / 10¹¹")
        guide = [seconds[-1] * (n / x[-1]) ** theory for n in x]
        axis.loglog(x, guide, ":", color="grey", label=f"slope {theory}")
        axis.set_xticks(x, [str(n) for n in x])
        axis.minorticks_off()
        axis.set_xlabel(label)
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    print(json.dumps({"batch": by_batch, "width": by_width, "slopes": slopes}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
