"""What full-rank models cost: time and memory against P, estimated beforehand and then measured.

    python examples/full_rank_cost.py docs/images/full-rank-cost.png [dense images]

Each size is trained for some iterations in a process of its own, because the memory of a process is
the most it ever had. The estimate is printed first. Time is that of the processor, in one thread,
so that other programs count little, and of the quickest iteration: objective, gradient and L-BFGS.
Slopes are of the larger half of the sizes. A quarter of an hour on a quiet machine.
"""

import json
import math
import os
import subprocess
import sys
import time
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from gramian.experiments.plots import training_plots as plots
from gramian.experiments.plots.style import BLUE, GREY, ORANGE, STYLE
from gramian.nn.full_rank.full_rank_config import FullRankConfig
from gramian.nn.full_rank.full_rank_dkm import FullRankConvDKM, FullRankDKM
from gramian.train.cost.full_rank_cost import PAIRS, estimate
from gramian.train.cost.machine import Machine
from gramian.train.lbfgs import maximise_
from gramian.train.runtime.memory import peak_bytes

CONFIG, SPACE, FEATURES = FullRankConfig(), (4, 4), 8
SIZES = {
    "dense": (250, 354, 500, 707, 1000, 1414, 2000, 2828),
    "images": (16, 22, 31, 44, 62, 88, 125),
}
COLOURS = {"dense": BLUE, "images": ORANGE}
Row = dict[str, Any]


def space_of(kind: str) -> tuple[int, int] | None:
    """(H, W); None for rows."""
    return SPACE if kind == "images" else None


def predict(kind: str, P: int) -> Row:
    """The estimate, with speeds that are measured now."""
    cost = estimate(CONFIG, P, space_of(kind))
    points = P * math.prod(space_of(kind) or (1,))
    machine = Machine.measure(points, clock=time.process_time)
    return {
        "kind": kind,
        "P": P,
        "N": points,
        "estimated_seconds": machine.seconds(cost),
        "estimated_bytes": cost.bytes,
    }


def measure(kind: str, P: int) -> Row:
    """Train in this process: seconds of an iteration, and the peak less what was there before."""
    train(kind, 8, 2)  # libraries take their memory at the first use
    before = peak_bytes()
    moments = train(kind, P, PAIRS + 1)  # until L-BFGS has filled its memory
    return {"seconds": float(np.diff(moments).min()), "bytes": peak_bytes() - before}


def train(kind: str, P: int, iterations: int) -> list[float]:
    """The moments at which the iterations of a search ended."""
    draw = torch.Generator().manual_seed(0)
    shape = (P, FEATURES, *(space_of(kind) or ()))
    x = torch.randn(shape, generator=draw, dtype=torch.float64)
    y = x.flatten(1)[:, :1].sin()
    model = (FullRankDKM if x.ndim == 2 else FullRankConvDKM)(x, y, CONFIG)
    model.initialise_()
    moments: list[float] = []

    def note(iteration: int, objective: float) -> None:
        moments.append(time.process_time())

    maximise_(model, max_iter=iterations, tol=0.0, on_iteration=note)
    return moments


def in_new_process(kind: str, P: int) -> Row:
    """What ``measure`` returns, from a process with one thread."""
    command = [sys.executable, __file__, "measure", kind, str(P)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # for SciPy, too
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    row: Row = json.loads(done.stdout)
    return row


def rows_of(kind: str) -> list[Row]:
    """Estimate and measure all sizes, and print a table with the slopes."""
    print(f"\n**{kind}**\n\n| P | N | s, estimate | s | ratio | MB, estimate | MB | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for P in SIZES[kind]:
        row = predict(kind, P)
        before = f"{row['estimated_seconds']:.3g}", f"{row['estimated_bytes'] / 1e6:.0f}"
        print(f"estimate for P = {P}: {before[0]} s, {before[1]} MB", file=sys.stderr, flush=True)
        row |= in_new_process(kind, P)
        ratios = [row[f"estimated_{unit}"] / row[unit] for unit in ("seconds", "bytes")]
        print(
            f"| {P:,} | {row['N']:,} | {before[0]} | {row['seconds']:.3g} | {ratios[0]:.2f} | "
            f"{before[1]} | {row['bytes'] / 1e6:.0f} | {ratios[1]:.2f} |",
            flush=True,
        )
        rows.append(row)
    for unit in ("seconds", "bytes"):
        both = [slope(rows, name) for name in (unit, f"estimated_{unit}")]
        print(f"\nslope of {unit}: {both[0]:.2f}, of the estimate {both[1]:.2f}", flush=True)
    return rows


def slope(rows: list[Row], name: str) -> float:
    """Least squares on logarithmic axes, over the larger half of the sizes."""
    large = rows[len(rows) // 2 :]
    P, values = ([math.log(row[key]) for row in large] for key in ("P", name))
    return float(np.polyfit(P, values, 1)[0])


@matplotlib.rc_context(STYLE)
def figure_of(rows: list[Row]) -> Figure:
    """Time and memory against the number N of points: measured as dots, estimated as lines."""
    figure = Figure(figsize=(8.4, 3.6))
    panels = [
        ("seconds", 1.0, 3, "processor seconds an iteration"),
        ("bytes", 1e9, 2, "peak memory, GB"),
    ]
    for axes, (name, unit, power, label) in zip(figure.subplots(1, 2), panels, strict=True):
        for kind in dict.fromkeys(row["kind"] for row in rows):
            own = [row for row in rows if row["kind"] == kind]
            N, colour = [row["N"] for row in own], COLOURS[kind]
            measured = [row[name] / unit for row in own]
            estimated = [row[f"estimated_{name}"] / unit for row in own]
            axes.plot(N, measured, "o", color=colour, label=f"{kind}, measured")
            axes.plot(N, estimated, color=colour, label=f"{kind}, estimate")
        ends = np.array([min(row["N"] for row in rows), max(row["N"] for row in rows)])
        top = max(row[name] / unit for row in rows)
        guide = 2 * top * (ends / ends[-1]) ** power
        axes.plot(ends, guide, ":", color=GREY, label=f"∝ N{'⁰¹²³'[power]}")
        axes.set(xscale="log", yscale="log", xlabel="points N of the Gram matrices", ylabel=label)
        ticks = [250, 500, 1000, 2000]
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.legend()
    return figure


def main(words: list[str]) -> None:
    """Draw the figure; or, in a process of its own, measure one size."""
    torch.set_num_threads(1)
    if words[0] == "measure":
        print(json.dumps(measure(words[1], int(words[2]))))
        return
    rows = [row for kind in words[1:] or SIZES for row in rows_of(kind)]
    plots.save(figure_of(rows), words[0])


if __name__ == "__main__":
    main(sys.argv[1:])
