"""``python -m paper linear``: the deep linear kernel machine, in closed form and by training."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from rich.console import Console
from rich.table import Table

from gramian.experiments.cli.options import Parser, UsageError, add_common_options
from gramian.experiments.cli.terminal import as_json

LEAST_NOISE = 1e-13  # of a model that is trained, instead of 0
HEADINGS = ("layer", "trace", "log determinant", "condition number", "difference when trained")


def run(words: Sequence[str]) -> None:
    """Compare the optimum with what L-BFGS finds from a random start."""
    options = linear_parser().parse_args(list(words))
    rows = compare(
        options.points, options.outputs, options.layers, options.nu, options.noise, options.seed
    )
    if options.json:
        sys.stdout.write(as_json([dict(zip(HEADINGS, row, strict=True)) for row in rows]))
        return
    table = Table(title="Gram matrices of a deep linear kernel machine", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for layer, *numbers in rows:
        table.add_row(str(layer), *(f"{value:.4g}" for value in numbers))
    Console(file=sys.stdout).print(table)


def linear_parser() -> Parser:
    """The options."""
    parser = Parser(
        "paper linear",
        "Gram matrices at the optimum of a deep linear kernel machine: geometric from layer to "
        "layer, in closed form; and how far from it training ends. Data and targets are random.",
        program="python -m",
    )
    parser.add_argument("--points", type=PositiveInt, default=5, help="data points")
    parser.add_argument("--outputs", type=PositiveInt, default=5, help="targets of each")
    parser.add_argument("--layers", type=PositiveInt, default=3, help="Gram layers")
    parser.add_argument("--nu", type=PositiveFloat, default=2.0, help="ν of all layers")
    parser.add_argument(
        "--noise",
        type=NonNegativeFloat,
        default=0.0,
        help="variance; if any, inputs are orthogonal",
    )
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="of data and start")
    add_common_options(parser)
    return parser


def compare(
    points: int, outputs: int, layers: int, nu: float, noise: float, seed: int
) -> list[tuple[int, float, float, float, float]]:
    """For each layer, numbers of the optimum and the relative difference of the trained matrix."""
    import torch

    from gramian import deep_linear_optimum
    from gramian.nn.full_rank.full_rank_config import FullRankConfig
    from gramian.nn.full_rank.full_rank_dkm import FullRankDKM
    from gramian.nn.steps.kernels import Jitter
    from gramian.train.lbfgs import maximise_
    from gramian.train.runtime.seeds import generator

    draw = generator(seed, "deep linear")
    x, y = (
        torch.randn(points, columns, generator=draw, dtype=torch.float64)
        for columns in (2 * points, outputs)
    )
    if noise:  # there is a closed form only for a multiple of the identity
        x = (2 * points) ** 0.5 * torch.linalg.qr(x.mT).Q.mT
    config = FullRankConfig(
        kernel="linear",
        weight_var=None,
        bias_var=None,
        kernel_jitter=Jitter(0.0, 0.0),
        shared_noise=True,
        nu=nu,
        num_layers=layers,
        noise_var=noise or LEAST_NOISE,
    )
    model = FullRankDKM(x, y, config)
    model.initialise_()
    model.likelihood.log_noise_var.requires_grad_(False)
    for parameter in model.layers.parameters():
        parameter.data.normal_(generator=draw)
    try:
        optimum = deep_linear_optimum(model.gram_matrices()["input"], y, nu, layers, noise)
    except ValueError as error:  # there is none
        raise UsageError(str(error)) from error
    maximise_(model, max_iter=5000, tol=1e-15)
    trained = list(model.gram_matrices().values())[1:]
    return [
        (
            number,
            G.trace().item(),
            G.logdet().item(),
            torch.linalg.cond(G).item(),
            ((found - G).norm() / G.norm()).item(),
        )
        for number, (G, found) in enumerate(zip(optimum, trained, strict=True), 1)
    ]
