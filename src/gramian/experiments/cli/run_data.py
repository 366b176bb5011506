"""The data that a command looks at: those of a run, split as the run did, or others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

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


def chosen_data(options: Namespace, split: str | None = None) -> tuple[str, Dataset]:
    """The name of the data and the points of a split (``--split``), split as the run did."""
    from gramian.train.config import config_from_dict
    from gramian.train.data import load
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
    if options.data_dir is not None:
        config = replace(config, data_dir=options.data_dir)
    data = getattr(load_task(config), split)
    if data is None:
        raise UsageError(
            f"--split {split}: the run had none (validation_fraction {config.validation_fraction})"
        )
    return config.data, data
