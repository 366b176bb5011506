"""``gramian predict``: a table of predictions for images or rows."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramian.experiments.cli.options import Parser, UsageError
from gramian.experiments.cli.saved_model import (
    PredictionFailed,
    add_batch_options,
    add_model_options,
    load_predictor,
    predicting,
)
from gramian.experiments.cli.terminal import as_json
from gramian.experiments.escapes import csv_cell

if TYPE_CHECKING:
    from torch import Tensor

    from gramian.train.predict.predictor import Predictor

Row = dict[str, Any]


def run(words: Sequence[str]) -> None:
    """Predict and write a table."""
    options = predict_parser().parse_args(list(words))
    predictor = load_predictor(options)
    names, x = read(options.inputs, predictor)
    with predicting():
        table = predictions(predictor, names, x, options.batch_size)
    check_finite(table)
    text = "".join(map(as_json, table)) if options.json else as_csv(table)
    if options.output == "-":
        sys.stdout.write(text)
    else:
        from gramian.train.record.files import write_text_atomically

        write_text_atomically(Path(options.output), text)


def predict_parser() -> Parser:
    """The options."""
    parser = Parser(
        "predict",
        "Class, probabilities, entropy and latent variance of images or rows; mean and standard "
        "deviation of a regression.",
    )
    add_model_options(parser)
    parser.add_argument(
        "inputs", nargs="+", help="image files, folders of image files, or one .npz with an array x"
    )
    parser.add_argument("--output", default="-", help="CSV file; - for standard output")
    add_batch_options(parser)
    return parser


def read(inputs: list[str], predictor: Predictor) -> tuple[list[str], Tensor]:
    """Names and values of all data points, of the shape that the model takes.

    Image files of another size or other colours are brought to it; arrays are not.
    """
    from gramian.train.data import read_images, read_inputs

    shape = predictor.model.data_shape
    paths = [path for text in inputs for path in files_of(Path(text))]
    if any(path.suffix == ".npz" for path in paths):
        if len(paths) > 1:
            raise UsageError("give either image files or one .npz file")
        x = read_inputs(paths[0])
        if tuple(x.shape[1:]) != shape:
            raise UsageError(f"the model takes data of shape {shape}, got {tuple(x.shape[1:])}")
        return [f"{paths[0].name}[{number}]" for number in range(len(x))], x
    if len(shape) != 3:
        raise UsageError(f"the model takes rows of {shape[0]} numbers, in one .npz file")
    if not predictor.takes_bytes:
        raise UsageError(
            "the model was trained on floating-point images, and what the levels of an image file "
            "mean to it is not known: give an .npz file on the scale of its training"
        )
    return [str(path) for path in paths], read_images(paths, shape)


def files_of(path: Path) -> list[Path]:
    """The file itself, or all images of a folder, also of one that could be trained on."""
    if not path.is_dir():
        return [path]
    from gramian.image_files import SUFFIXES
    from gramian.train.data import DataError
    from gramian.train.data.own_folder import files_below

    images = [file for file in files_below(path) if file.suffix.lower() in SUFFIXES]
    if not images:
        raise DataError(f"{path} holds no image file ({', '.join(SUFFIXES)})")
    return images


def predictions(predictor: Predictor, names: list[str], x: Tensor, batch_size: int) -> list[Row]:
    """One row per data point."""
    found = predictor.predictions(x, batch_size)
    if "probabilities" in found:
        rows = zip(names, found["probabilities"], found["latent_variance"], strict=True)
        return [class_row(name, predictor.class_names, p, var) for name, p, var in rows]
    rows = zip(names, found["mean"], found["variance"].sqrt(), strict=True)
    return [
        {"input": name, **_numbered("mean", mean), **_numbered("std", std)}
        for name, mean, std in rows
    ]


def class_row(name: str, classes: Sequence[str], probabilities: Tensor, var: Tensor) -> Row:
    """The best class, how certain it is, and the probabilities of all."""
    p = [round(value, 6) for value in probabilities.tolist()]
    entropy = -(probabilities * probabilities.clamp_min(1e-45).log()).sum().item()
    best = int(probabilities.argmax())
    return {
        "input": name,
        "class": classes[best],
        "probability": p[best],
        "entropy": round(entropy, 6),
        "latent_variance": round(var.mean().item(), 6),
        **{f"p({each})": value for each, value in zip(classes, p, strict=True)},
    }


def check_finite(table: list[Row]) -> None:
    """Refuse predictions that are no numbers, which damaged weights give."""
    bad = [
        row["input"]
        for row in table
        if any(isinstance(value, float) and not math.isfinite(value) for value in row.values())
    ]
    if bad:
        raise PredictionFailed(
            f"{len(bad)} of {len(table)} predictions are not finite, the first for {bad[0]}: the "
            "model's weights hold NaN or infinity"
        )


def as_csv(table: list[Row]) -> str:
    """The table as comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(csv_cell, table[0]))
    writer.writerows(map(csv_cell, row.values()) for row in table)
    return text.getvalue()


def _numbered(name: str, values: Tensor) -> dict[str, float]:
    numbers = values.tolist()
    if len(numbers) == 1:
        return {name: numbers[0]}
    return {f"{name}_{number}": value for number, value in enumerate(numbers)}
