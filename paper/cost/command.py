"""``python -m paper cost``: what training the paper's model would cost, without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gramian.experiments.cli.options import Parser, add_common_options
from gramian.experiments.cli.terminal import as_json


def run(words: Sequence[str]) -> None:
    """Simulate training at a scale."""
    options = cost_parser().parse_args(list(words))
    from paper.cost.cost_text import as_text
    from paper.cost.simulation import simulate

    costs = simulate(options.scale)
    sys.stdout.write(as_json(costs) if options.json else as_text(costs))


def cost_parser() -> Parser:
    """The options."""
    parser = Parser(
        "paper cost",
        "Parameters, FLOPs, memory, and time on an A100 of training at a scale. Nothing is "
        "measured: a step runs on tensors without storage, in half a minute.",
        program="python -m",
    )
    parser.add_argument(
        "--scale", choices=["paper", "small"], default="paper", help="of the model and its data"
    )
    add_common_options(parser)
    return parser
