"""The ladder from the NNGP to a full-rank DKM in one picture: G leaves the kernel as ν falls.

A noisy step in one dimension. A stationary kernel treats all neighbours alike; a learned Gram
matrix can tell the two sides of the step apart. For each ν a full-rank model of one Gram layer is
trained from the best NNGP; G and K are those of that model. A Markdown table is printed and a
picture saved. `python examples/ladder.py [--output ladder.png] [--nu inf 10 1] [--seed 0]`
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

from gramian.experiments.plots.style import BLACK, BLUE, GREY, ORANGE, STYLE, Figure, save
from gramian.gram.divergence import gaussian_divergence
from gramian.gram.linalg import cholesky
from gramian.nn.full_rank.full_rank_config import FullRankConfig
from gramian.nn.full_rank.full_rank_dkm import FullRankDKM
from gramian.train.lbfgs import maximise_from_nngp_

NOISE, WIDTH, NUM_TEST = 0.3, 1.7, 1000
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rung:
    """A trained model and its figures."""

    nu: float
    iterations: str
    objective: float  # a training point
    kl: float  # of N(0, G) from N(0, K), without ν
    distance: float  # ‖G − K‖_F / ‖K‖_F
    alignments: tuple[float, float, float]  # with y yᵀ, of K, of G and of the output's K(G)
    rmse: float
    log_likelihood: float  # a test point
    G: Array  # rows sorted by x
    mean: Array  # of y, along GRID
    std: Array


GRID = torch.linspace(-WIDTH, WIDTH, 201, dtype=torch.float64)[:, None]


def draw_step(num: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """x uniform, sorted; y = ±1, the sign of x, with noise."""
    x = WIDTH * (2 * torch.rand(num, 1, generator=draw, dtype=torch.float64) - 1)
    x = x.sort(0).values
    return x, x.sign() + NOISE * torch.randn(num, 1, generator=draw, dtype=torch.float64)


def alignment(K: Tensor, y: Tensor) -> float:
    """Centred kernel alignment of K with y yᵀ: their correlation as vectors, 1 at the most."""
    y = y - y.mean(0)
    H = torch.eye(len(K), dtype=K.dtype) - 1 / len(K)
    return float((y.mT @ K @ y).sum() / ((H @ K @ H).norm() * y.square().sum()))


def climb(nu: float, x: Tensor, y: Tensor, test: tuple[Tensor, Tensor], max_iter: int) -> Rung:
    """Train a model of one Gram layer and look at it."""
    config = FullRankConfig(
        kernel="squared_exponential",
        lengthscales="one",
        weight_var=None,  # y is about ±1, and the prior has variance 1
        bias_var=None,
        nu=nu,
    )
    model = FullRankDKM(x, y, config)
    model.initialise_()
    search = maximise_from_nngp_(model, max_iter=max_iter)
    with torch.no_grad():
        layer = model.inducing_chain().layers["layer1"]
        G, K = layer.ii, layer.K_ii
        kl = gaussian_divergence("exact", K, cholesky(K, what="K"), cholesky(G, what="G"))
        unused = torch.zeros(1, 1, 1, dtype=torch.float64)
        q = model.predict(test[0])
        log_likelihood = model.likelihood.log_marginal(q, test[1], unused).mean()
        mean, var = model.likelihood.predict(model.predict(GRID), unused).values()
        return Rung(
            nu=nu,
            iterations=f"{len(search.objectives) - 1}" + ", not converged" * (not search.converged),
            objective=search.objectives[-1],
            kl=float(kl),
            distance=float((G - K).norm() / K.norm()),
            alignments=(alignment(K, y), alignment(G, y), alignment(model.top_kernel(), y)),
            rmse=float((q.mean - test[1]).square().mean().sqrt()),
            log_likelihood=float(log_likelihood),
            G=G.numpy(),
            mean=mean[:, 0].numpy(),
            std=var[:, 0].sqrt().numpy(),
        )


def table(rungs: Sequence[Rung]) -> str:
    """The figures, as Markdown."""
    lines = [
        "| ν | Objective | KL to K | ‖G − K‖/‖K‖ | Alignment: K | G | K(G) "
        "| Test RMSE | Test log-likelihood | Iterations |",
        "|---" * 10 + "|",
    ]
    for r in rungs:
        aligned = " | ".join(f"{value:.3f}" for value in r.alignments)
        row = (
            f"| {name(r.nu)} | {r.objective:.4f} | {r.kl:.3f} | {r.distance:.3f} | {aligned} "
            f"| {r.rmse:.3f} | {r.log_likelihood:.3f} | {r.iterations} |"
        )
        lines.append(row.replace("-", "−"))
    return "\n".join(lines)


def name(nu: float) -> str:
    """∞, or the number."""
    return "∞" if nu == math.inf else f"{nu:g}"


@matplotlib.rc_context(STYLE)
def picture(rungs: Sequence[Rung], x: Tensor, y: Tensor) -> Figure:
    """For each ν the Gram matrix above and the fit below; on the right two figures against ν."""
    figure = Figure(figsize=(1.5 * len(rungs) + 2.9, 4.1))
    widths = [1.5 * len(rungs) + 0.4, 2.5]
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=widths)[0]
    grid = left.subplots(2, len(rungs), squeeze=False)
    largest = max(np.abs(rung.G).max() for rung in rungs)
    middle = float((x < 0).sum()) - 0.5  # of the rows: the step
    for column, rung in enumerate(rungs):
        top, bottom = grid[:, column]
        image = top.imshow(rung.G, cmap="PuOr_r", vmin=-largest, vmax=largest)
        top.set_title("ν = ∞:  G = K" if rung.nu == math.inf else f"ν = {name(rung.nu)}:  G")
        top.set(xticks=[middle], yticks=[middle], xticklabels=[], yticklabels=[])
        top.grid(False)
        draw_fit(bottom, rung, x, y)
        bottom.tick_params(labelleft=column == 0)
    grid[0, 0].set_ylabel("training points,\nby x (tick: the step)")
    grid[1, 0].set_ylabel("y: data, fit ± 2 std")
    left.colorbar(image, ax=list(grid[0]), shrink=0.8, pad=0.01)
    upper, lower = right.subplots(2, 1)
    places = np.arange(len(rungs))
    upper.plot(places, [rung.distance for rung in rungs], "o-", color=BLACK)
    upper.set(title="Distance ‖G − K‖ / ‖K‖", ylim=(0, None))
    lines = ("K", GREY, "o--"), ("G", BLACK, "o-"), ("K(G)", ORANGE, "s-")
    for number, (label, colour, marks) in enumerate(lines):
        values = [rung.alignments[number] for rung in rungs]
        lower.plot(places, values, marks, color=colour, label=label)
    lower.set(title="Alignment with y yᵀ", ylim=(0, 1), xlabel="ν")
    lower.legend(ncols=3, loc="lower left")
    for axes in (upper, lower):
        axes.set_xticks(places, [name(rung.nu) for rung in rungs])
    return figure


def draw_fit(axes: Axes, rung: Rung, x: Tensor, y: Tensor) -> None:
    """Data, mean and two standard deviations of y; above them the test log-likelihood."""
    low, high = rung.mean - 2 * rung.std, rung.mean + 2 * rung.std
    axes.fill_between(GRID[:, 0].numpy(), low, high, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(GRID[:, 0].numpy(), rung.mean, color=BLUE)
    axes.plot(x[:, 0].numpy(), y[:, 0].numpy(), ".", color=BLACK, markersize=3)
    number = f"{rung.log_likelihood:.2f}".replace("-", "−")
    axes.set_title(f"test log-lik. {number}", fontsize=8.5)
    axes.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], ylim=(-2.2, 2.2), xlabel="x")


def main(words: Sequence[str] | None = None) -> list[Rung]:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    add = parser.add_argument
    add("--output", type=Path, default=Path("ladder.png"), help="the picture")
    add("--nu", type=float, nargs="+", default=[math.inf, 30.0, 10.0, 3.0, 1.0], help="falling")
    add("--points", type=int, default=50, help="training points")
    add("--seed", type=int, default=0)
    add("--max-iter", type=int, default=500, help="iterations of each search")
    options = parser.parse_args(words)
    draw = torch.Generator().manual_seed(options.seed)
    x, y = draw_step(options.points, draw)
    test = draw_step(NUM_TEST, draw)
    rungs = [climb(nu, x, y, test, options.max_iter) for nu in options.nu]
    print(table(rungs))
    save(picture(rungs, x, y), options.output)
    return rungs


if __name__ == "__main__":
    torch.set_num_threads(1)  # small matrices
    main()
