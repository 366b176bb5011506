"""``python -m benchmarks``: speed and memory beside a network of the same widths."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jsonargparse.typing import PositiveInt

from gramian.experiments.cli.main import answer, words_of
from gramian.experiments.cli.options import Parser, UsageError, add_common_options, announce
from gramian.experiments.cli.terminal import as_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return answer("python -m benchmarks", words_of(arguments), run)


def run(words: Sequence[str]) -> None:
    """Measure on this machine, and say what was measured."""
    options = bench_parser().parse_args(list(words))
    announce("benchmarks")
    import torch

    from benchmarks.bench_text import as_text
    from benchmarks.benchmark import run_bench

    threads = torch.get_num_threads() if options.threads is None else options.threads
    if options.plot:
        if options.skip_parts:
            raise UsageError("--plot shows the parts of a step, which --skip_parts leaves out")
        from gramian.experiments.plots import (
            training_plots as plots,  # before the measurements, in case it is not installed
        )
    sizes = options.width, options.batch, options.repeats
    result = run_bench(
        *sizes, threads, memory=not options.skip_memory, parts=not options.skip_parts
    )
    if options.plot:
        from benchmarks.parts_plot import parts_figure

        plots.save(parts_figure(result), options.plot)
    sys.stdout.write(as_json(result) if options.json else as_text(result))


def bench_parser() -> Parser:
    """The options."""
    parser = Parser(
        "benchmarks",
        "Time and memory of a convolutional DKM on the CPU, beside a ResNet-20 of the same widths. "
        "The two take turns; a ratio is that of one turn.",
        program="python -m",
    )
    parser.add_argument(
        "--width", type=PositiveInt, default=64, help="inducing points of the first stage"
    )
    parser.add_argument("--batch", type=PositiveInt, default=256, help="images at once")
    parser.add_argument("--repeats", type=PositiveInt, default=7, help="turns that are measured")
    parser.add_argument(
        "--threads", type=PositiveInt | None, default=None, help="of PyTorch; null: its own choice"
    )
    parser.add_argument("--plot", type=str | None, default=None, help="PNG file: parts of a step")
    parser.add_argument("--skip_memory", action="store_true", help="do not measure memory")
    parser.add_argument("--skip_parts", action="store_true", help="do not take a step apart")
    add_common_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
