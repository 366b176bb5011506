"""The data that a command looks at: those of a run, split as the run did, or others."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import PositiveInt

from gramian.experiments.cli.options import UsageError
from gramian.experiments.cli.saved_model import named_model
from gramian.experiments.cli.train_options import read_config

if TYPE_CHECKING:
    from gramian.train.data import Dataset

SPLITS = ("test", "validation", "train")


def add_data_options(parser: ArgumentParser) -> None:
    """Options of commands that look at data."""
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


def add_comparison_options(parser: ArgumentParser) -> None:
    """Options of commands that compare new data with those of the run."""
    parser.add_argument(
        "--data", type=str | None, default=None,
        help="data set with training and test data, to compare with; null: the run's own",
    )  # fmt: skip
    parser.add_argument("--data_dir", type=str | None, default=None, help="where data are stored")
    parser.add_argument(
        "--among", type=PositiveInt, default=2000, help="training and test data to compare with"
    )


def some_data(options: Namespace, split: str, shape: tuple[int, ...]) -> Dataset:
    """``--among`` points of a split, the same every time, of the shape that the model takes."""
    import torch

    from gramian.train.runtime.seeds import generator

    data = fitting_data(options, split, shape)
    order = torch.randperm(len(data), generator=generator(0, "explain"))[: options.among]
    return data.subset(order.sort().values)


def fitting_data(options: Namespace, split: str, shape: tuple[int, ...]) -> Dataset:
    """All points of a split, which must have the shape that the model takes."""
    name, data = chosen_data(options, split)
    check_shape(name, data, shape)
    return data


def check_shape(name: str, data: Dataset, shape: tuple[int, ...]) -> None:
    """Raise unless the data have the shape that the model takes."""
    found = tuple(data.x.shape[1:])
    if found != shape:
        raise UsageError(f"the model takes data of shape {shape}, {name} has {found}")


def chosen_data(options: Namespace, split: str | None = None) -> tuple[str, Dataset]:
    """The name of the data and the points of a split (``--split``), split as the run did."""
    from gramian.train.config import config_from_dict
    from gramian.train.data import check_named, load
    from gramian.train.task import load_task

    split = split or options.split
    if options.data is not None:
        if split == "validation":
            raise UsageError("--split validation is a part of the run's own data: leave out --data")
        return options.data, getattr(load(options.data, options.data_dir), split)
    path = named_model(options) / "config.yaml"
    if not path.exists():
        raise UsageError(f"{options.model} is no run folder, so say which data: --data NAME")
    config = config_from_dict(read_config(path))
    check_named(config.data, options["import"])
    if options.data_dir is not None:
        config = replace(config, data_dir=options.data_dir)
    task = load_task(config)
    facts = path.with_name("env.json")
    digest = json.loads(facts.read_text()).get("data") if facts.exists() else None
    if digest not in (None, task.digest()):
        raise UsageError(
            f"{config.data} holds other data than the run had, so that its {split} set may hold "
            f"points that were trained on. To use it as it is now: --data {config.data}"
        )
    data = getattr(task, split)
    if data is None:
        raise UsageError(
            f"--split {split}: the run had none (validation_fraction {config.validation_fraction})"
        )
    return config.data, data
