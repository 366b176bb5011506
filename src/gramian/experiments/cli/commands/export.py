"""``gramian export``: a trained model as one file that needs nothing of this package."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from gramian.experiments.cli.options import Parser
from gramian.experiments.cli.saved_model import (
    add_model_options,
    load_predictor,
    output_folder,
    predicting,
)
from gramian.experiments.cli.terminal import as_json
from gramian.experiments.escapes import say

if TYPE_CHECKING:
    from gramian.train.predict.export import Export


def run(words: Sequence[str]) -> None:
    """Write the file, and say how far its predictions are from the model's."""
    options = export_parser().parse_args(list(words))
    predictor = load_predictor(options)
    from gramian.train.predict.export import export

    path = options.output or output_folder(options) / f"model.{options.format}"
    with predicting():
        result = export(predictor, path, options.format)
    if options.json:
        sys.stdout.write(as_json({**asdict(result), "path": str(result.path)}))
    else:
        say(as_text(result))


def export_parser() -> Parser:
    """The options."""
    parser = Parser(
        "export",
        "A trained model as one file for prediction, for PyTorch (pt2) or ONNX. It takes raw data, "
        "any number at once, and is compared with the model before it is kept.",
    )
    add_model_options(parser)
    parser.add_argument(
        "--format", choices=("pt2", "onnx"), required=True, help="of the file: PyTorch's or ONNX"
    )
    parser.add_argument(
        "--output", type=str | None, default=None, help="file; null: MODEL/model.FORMAT"
    )
    return parser


def as_text(result: Export) -> str:
    """The result for people."""
    facts = {
        "file": f"{result.path} ({result.bytes:,} bytes)",
        "difference": f"{result.max_difference:.1e} from the model, relative to the largest value",
        **{f"input {name}": text for name, text in result.inputs.items()},
        **{f"output {name}": text for name, text in result.outputs.items()},
    }
    return "".join(f"{key:<20} {value}\n" for key, value in facts.items())
