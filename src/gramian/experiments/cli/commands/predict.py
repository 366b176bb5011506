"""``gramian predict``: a table of predictions for images or rows."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser
from torch import Tensor

from gramian.experiments.cli.commands.evaluate import model_folder
from gramian.experiments.cli.options import add_common_options
from gramian.train.config import ConfigError
from gramian.train.data import read_images, read_inputs
from gramian.train.predict.predictor import Predictor
from gramian.train.record.files import write_text_atomically


def run(words: Sequence[str]) -> None:
    """Predict and write a table."""
    parser = ArgumentParser(
        prog="gramian predict",
        description="Class, probability, entropy and latent variance of images or rows.",
    )
    parser.add_argument("model", help="run folder, or folder of a saved model")
    parser.add_argument("inputs", nargs="+", help="image files, or one .npz with an array x")
    parser.add_argument("--output", default="-", help="CSV file; - for standard output")
    parser.add_argument("--batch_size", type=int, default=256, help="data points at once")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps")
    add_common_options(parser)
    options = parser.parse_args(list(words))
    predictor = Predictor.from_pretrained(model_folder(options.model), options.device)
    names, x = read(options.inputs)
    table = predictions(predictor, names, x, options.batch_size)
    text = as_json(table) if options.json else as_csv(table)
    if options.output == "-":
        sys.stdout.write(text)
    else:
        write_text_atomically(Path(options.output), text)


def read(inputs: list[str]) -> tuple[list[str], Tensor]:
    """Names and values of all data points."""
    paths = [Path(text) for text in inputs]
    if any(path.suffix == ".npz" for path in paths):
        if len(paths) > 1:
            raise ConfigError("give either image files or one .npz file")
        x = read_inputs(paths[0])
        return [f"{paths[0].name}[{number}]" for number in range(len(x))], x
    return [str(path) for path in paths], read_images(paths)


def predictions(
    predictor: Predictor, names: list[str], x: Tensor, batch_size: int
) -> list[dict[str, Any]]:
    """A row a data point."""
    shape = predictor.model.data_shape
    if tuple(x.shape[1:]) != shape:
        raise ConfigError(f"the model takes data of shape {shape}, got {tuple(x.shape[1:])}")
    if not predictor.class_names:
        mean, var = predictor.mean_and_variance(x, batch_size)
        rows = zip(names, mean.tolist(), var.sqrt().tolist(), strict=True)
        return [
            {"input": name, **_numbered("mean", means), **_numbered("std", stds)}
            for name, means, stds in rows
        ]
    probabilities = predictor.probabilities(x, batch_size)
    latent = predictor.latent(x, batch_size)
    best, index = probabilities.max(1)
    entropy = -(probabilities * probabilities.clamp_min(1e-45).log()).sum(1)
    return [
        {
            "input": name,
            "class": predictor.class_names[int(index[number])],
            "probability": round(best[number].item(), 6),
            "entropy": round(entropy[number].item(), 6),
            "latent_variance": round(latent.var[number].item(), 6),
        }
        for number, name in enumerate(names)
    ]


def as_csv(table: list[dict[str, Any]]) -> str:
    """The table as comma-separated values."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def as_json(table: list[dict[str, Any]]) -> str:
    """The table as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in table)


def _numbered(name: str, values: list[float]) -> dict[str, float]:
    if len(values) == 1:
        return {name: values[0]}
    return {f"{name}_{number}": value for number, value in enumerate(values)}
