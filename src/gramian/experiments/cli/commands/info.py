"""``gramian info``: versions and devices, or what a trained model is made of."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from jsonargparse import Namespace

from gramian.experiments.cli.options import Parser
from gramian.experiments.cli.saved_model import add_model_options, load_predictor
from gramian.experiments.cli.terminal import as_json
from gramian.experiments.escapes import printable


def run(words: Sequence[str]) -> None:
    """Describe this installation, or a model."""
    options = info_parser().parse_args(list(words))
    facts = describe_model(options) if options.model else describe_installation()
    if options.json:
        sys.stdout.write(as_json(facts))
    else:
        sys.stdout.write(
            "".join(f"{key:<14} {printable(_short(value))}\n" for key, value in facts.items())
        )


def info_parser() -> Parser:
    """The options."""
    parser = Parser("info", "Versions and devices here, or what a trained model is made of.")
    add_model_options(parser, optional=True)
    return parser


def describe_installation() -> dict[str, Any]:
    """Versions, processor and devices."""
    import torch

    from gramian.train.record.run_folder import environment

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return environment(seed=0, device=device, dtype=torch.get_default_dtype())


def describe_model(options: Namespace) -> dict[str, Any]:
    """Size, classes, layers and settings of a saved model."""
    from gramian.nn.model import DKM

    predictor = load_predictor(options)
    model = predictor.model
    return {
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "input": list(model.data_shape),
        "classes": list(predictor.class_names),
        "layers": list(model.layers) if isinstance(model, DKM) else [],
        "dtype": str(model.dtype),
        "settings": predictor.settings(),
    }


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
