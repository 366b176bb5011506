"""``gramian export``: a trained model as one file that needs nothing of this package."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from jsonargparse import ArgumentParser

from gramian.experiments.cli.commands.evaluate import model_folder
from gramian.experiments.cli.options import add_common_options
from gramian.train.predict.export import Export, Format, export
from gramian.train.predict.predictor import Predictor


def run(words: Sequence[str]) -> None:
    """Write the file, and say how far its predictions are from the model's."""
    parser = ArgumentParser(
        prog="gramian export",
        description="A trained model as one file for prediction, for PyTorch (pt2) or ONNX. It "
        "takes raw data, any number at once, and is compared with the model before it is kept.",
    )
    parser.add_argument("model", help="run folder, or folder of a saved model")
    parser.add_argument("--format", choices=get_args(Format), required=True, help="of the file")
    parser.add_argument(
        "--output", type=str | None, default=None, help="file; MODEL/model.FORMAT if not given"
    )
    add_common_options(parser)
    options = parser.parse_args(list(words))
    predictor = Predictor.from_pretrained(model_folder(options.model))
    path = options.output or Path(options.model) / f"model.{options.format}"
    result = export(predictor, path, options.format)
    sys.stdout.write(as_json(result) if options.json else as_text(result))


def as_json(result: Export) -> str:
    """The result as one line of JSON."""
    return json.dumps({**asdict(result), "path": str(result.path)}) + "\n"


def as_text(result: Export) -> str:
    """The result for people."""
    facts = {
        "file": f"{result.path} ({result.bytes:,} bytes)",
        "difference": f"{result.max_difference:.1e} from the model, relative to the largest value",
        **{f"input {name}": text for name, text in result.inputs.items()},
        **{f"output {name}": text for name, text in result.outputs.items()},
    }
    return "".join(f"{key:<20} {value}\n" for key, value in facts.items())
