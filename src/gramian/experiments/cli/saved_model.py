"""Commands that take a saved model: their options, how it is loaded, and how it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import PositiveInt

from gramian.experiments.cli.options import add_common_options, import_modules
from gramian.explained import Explained
from gramian.train.run_settings import check_device

if TYPE_CHECKING:
    from gramian.train.predict.predictor import Predictor


class PredictionFailed(Explained, ArithmeticError):
    """The model's numbers mean nothing for these data."""

    exit_code = 3


def add_model_options(parser: ArgumentParser, optional: bool = False) -> None:
    """Options of every command that takes a saved model."""
    parser.add_argument(
        "model",
        nargs="?" if optional else None,
        help="run folder, folder of a saved model, or pretrained:NAME",
    )
    parser.add_argument(
        "--import",
        action="append",
        default=[],
        help="Python module to import first, with custom kernels or likelihoods; may be given "
        "several times; the current folder is searched too",
    )
    add_common_options(parser)


def add_batch_options(parser: ArgumentParser) -> None:
    """Options of commands that predict."""
    parser.add_argument("--batch_size", type=PositiveInt, default=256, help="data points at once")
    add_device_option(parser)


def add_device_option(parser: ArgumentParser) -> None:
    """Where a saved model works."""
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or mps")


def load_predictor(options: Namespace) -> Predictor:
    """The model that the options name, where they want it."""
    check_device(options.get("device", "cpu"))
    from gramian.train.predict.predictor import Predictor
    from gramian.train.runtime.devices import choose_device

    import_modules(options["import"])
    device = choose_device(options.get("device", "cpu"))
    return Predictor.from_pretrained(options.model, device)


def named_model(options: Namespace) -> Path:
    """The folder that the options name as their model."""
    from gramian.train.pretrained import named_folder

    return named_folder(options.model)


def output_folder(options: Namespace) -> Path:
    """Where pages and pictures go: ``--output``, or beside the model; not into the package."""
    from gramian.train.pretrained import is_pretrained

    if options.output:
        return Path(options.output)
    return Path() if is_pretrained(options.model) else Path(options.model)


@contextmanager
def predicting() -> Iterator[None]:
    """Say what a numerical error means when nothing is being trained."""
    from gramian.gram.errors import NumericalError

    try:
        yield
    except NumericalError as error:
        raise PredictionFailed(
            f"{error.layer or 'the model'}: {error.fact()} Check that the data have the units and "
            "the range of the training data, and that the model is whole (gramian evaluate shows "
            "its metrics). Models trained with more jitter or --precision 64-true are more robust."
        ) from error
