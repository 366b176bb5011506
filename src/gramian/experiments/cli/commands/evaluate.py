"""``gramian evaluate``: figures of a trained model on a data set."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from jsonargparse import ArgumentParser

from gramian.experiments.cli.options import add_common_options
from gramian.experiments.cli.terminal import show_figures
from gramian.train.config import ConfigError
from gramian.train.data import load
from gramian.train.predict.evaluate import evaluate, figures
from gramian.train.predict.predictor import Predictor


def run(words: Sequence[str]) -> None:
    """Evaluate on the test set that the model was made for, or on another one."""
    parser = ArgumentParser(
        prog="gramian evaluate", description="Figures of a trained model on a test set."
    )
    parser.add_argument("model", help="run folder, or folder of a saved model")
    parser.add_argument("--data", type=str | None, default=None, help="data set; the run's own")
    parser.add_argument("--data_dir", type=str | None, default=None, help="where data are stored")
    parser.add_argument("--split", choices=["test", "train"], default="test", help="which part")
    parser.add_argument("--batch_size", type=int, default=256, help="data points at once")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps")
    add_common_options(parser)
    options = parser.parse_args(list(words))
    folder = model_folder(options.model)
    predictor = Predictor.from_pretrained(folder, options.device)
    name = options.data or data_of_run(Path(options.model))
    data = getattr(load(name, options.data_dir), options.split)
    check_classes(predictor, data.class_names)
    result = figures(evaluate(predictor, data, options.batch_size))
    if options.json:
        sys.stdout.write(json.dumps({"data": name, "split": options.split, **result}) + "\n")
    else:
        show_figures(f"{options.model} on {name}", {options.split: result})


def model_folder(path: str) -> Path:
    """The folder of the saved model, in a run folder or by itself."""
    inside = Path(path) / "model"
    return inside if inside.is_dir() else Path(path)


def data_of_run(folder: Path) -> str:
    """The data set that a run was trained on."""
    path = folder / "config.yaml"
    if not path.exists():
        raise ConfigError(f"{folder} is no run folder, so say which data: --data NAME")
    return str(yaml.safe_load(path.read_text())["data"])


def check_classes(predictor: Predictor, class_names: tuple[str, ...]) -> None:
    """Refuse data with other classes than the model knows."""
    if predictor.class_names != class_names:
        raise ConfigError(
            f"the model knows the classes {', '.join(predictor.class_names)}, "
            f"the data have {', '.join(class_names)}"
        )
