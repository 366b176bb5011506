"""``gramian evaluate``: metrics of a trained model on a data set."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from gramian.experiments.cli.options import Parser, UsageError
from gramian.experiments.cli.saved_model import (
    add_batch_options,
    add_model_options,
    load_predictor,
    predicting,
)
from gramian.experiments.cli.terminal import as_json, show_metrics
from gramian.experiments.cli.train_options import read_config

if TYPE_CHECKING:
    from gramian.train.data import Dataset

SPLITS = ("test", "validation", "train")


def run(words: Sequence[str]) -> None:
    """Evaluate on data that the model was made for, or on others."""
    options = evaluate_parser().parse_args(list(words))
    predictor = load_predictor(options)
    name, data = chosen_data(options)
    if predictor.class_names != data.class_names:
        raise UsageError(
            f"the model knows the classes {', '.join(predictor.class_names)}, "
            f"the data have {', '.join(data.class_names)}"
        )
    from gramian.train.predict.evaluate import as_numbers, evaluate

    with predicting():
        result = as_numbers(evaluate(predictor, data, options.batch_size))
    if options.json:
        sys.stdout.write(as_json({"data": name, "split": options.split, **result}))
    else:
        show_metrics(f"{options.model} on {name}", {options.split: result})


def evaluate_parser() -> Parser:
    """The options."""
    parser = Parser("evaluate", "Metrics of a trained model on a data set.")
    add_model_options(parser)
    parser.add_argument(
        "--data", type=str | None, default=None, help="another data set; null: the run's own"
    )
    parser.add_argument("--data_dir", type=str | None, default=None, help="where data are stored")
    parser.add_argument(
        "--split",
        choices=SPLITS,
        default="test",
        help="which part; train and validation are the points that the run had, unless --data "
        "names others",
    )
    add_batch_options(parser)
    return parser


def chosen_data(options: Namespace) -> tuple[str, Dataset]:
    """The name of the data, and the points to evaluate on, split as the run did."""
    from gramian.train.config import config_from_dict
    from gramian.train.data import load
    from gramian.train.task import load_task

    if options.data is not None:
        if options.split == "validation":
            raise UsageError("--split validation is a part of the run's own data: leave out --data")
        return options.data, getattr(load(options.data, options.data_dir), options.split)
    path = Path(options.model) / "config.yaml"
    if not path.exists():
        raise UsageError(f"{options.model} is no run folder, so say which data: --data NAME")
    config = config_from_dict(read_config(path))
    if options.data_dir is not None:
        config = replace(config, data_dir=options.data_dir)
    data = getattr(load_task(config), options.split)
    if data is None:
        raise UsageError(
            f"--split {options.split}: the run had none (validation_fraction "
            f"{config.validation_fraction})"
        )
    return config.data, data
