"""``gramian info``: versions and devices, what a trained model is made of, or what one would cost.

``--scale`` simulates training the paper's model, or a small one, without a GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import torch
from jsonargparse import ArgumentParser

from gramian.experiments.cli.commands.evaluate import model_folder
from gramian.experiments.cli.options import add_common_options
from gramian.nn.model import DKM
from gramian.train.config import ConfigError, model_config_to_dict
from gramian.train.predict.predictor import Predictor
from gramian.train.record.run_folder import environment


def run(words: Sequence[str]) -> None:
    """Describe this installation, a model, or the cost of one."""
    parser = ArgumentParser(
        prog="gramian info",
        description="Versions and devices here, what a trained model is made of, or what it would "
        "cost to train one at a scale: parameters, FLOPs, memory, and time on an A100.",
    )
    parser.add_argument("model", nargs="?", help="run folder, or folder of a saved model")
    parser.add_argument(
        "--scale",
        choices=["paper", "small"],
        help="simulate training at this size, on tensors without storage; takes half a minute",
    )
    add_common_options(parser)
    options = parser.parse_args(list(words))
    if options.scale:
        if options.model:
            raise ConfigError("--scale simulates a preset: name it or a model's folder, not both")
        from gramian.experiments.cost.cost_text import as_text
        from gramian.experiments.cost.simulation import simulate

        costs = simulate(options.scale)
        sys.stdout.write(json.dumps(costs) + "\n" if options.json else as_text(costs))
        return
    facts = describe_model(options.model) if options.model else describe_installation()
    if options.json:
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        sys.stdout.write("".join(f"{key:<14} {_short(value)}\n" for key, value in facts.items()))


def describe_installation() -> dict[str, Any]:
    """Versions, processor and devices."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return environment(seed=0, device=device, dtype=torch.get_default_dtype())


def describe_model(path: str) -> dict[str, Any]:
    """Size, classes, layers and settings of a saved model."""
    predictor = Predictor.from_pretrained(model_folder(path))
    model = predictor.model
    return {
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "input": list(model.data_shape),
        "classes": list(predictor.class_names),
        "layers": list(model.layers) if isinstance(model, DKM) else [],
        "dtype": str(model.dtype),
        "settings": model_config_to_dict(predictor.config),
    }


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
