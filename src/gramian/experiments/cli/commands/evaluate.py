"""``gramian evaluate``: metrics of a trained model on a data set."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from gramian.experiments.cli.options import Parser, UsageError
from gramian.experiments.cli.run_data import add_data_options, check_shape, chosen_data
from gramian.experiments.cli.saved_model import (
    add_batch_options,
    add_model_options,
    load_predictor,
    predicting,
)
from gramian.experiments.cli.terminal import as_json, show_detections, show_metrics

if TYPE_CHECKING:
    from torch import Tensor

    from gramian.metrics import Array
    from gramian.train.data import Dataset
    from gramian.train.predict.predictor import Predictor

NOISE = "noise"


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
    check_shape(name, data, predictor.model.data_shape)
    if data.num_outputs != predictor.model.num_outputs:
        raise UsageError(
            f"the model has {predictor.model.num_outputs} targets, {name} has {data.num_outputs}"
        )
    if options.ood and not predictor.class_names:
        raise UsageError("--ood is for classifiers, this model is a regression")
    name, data = corrupted_data(options, name, data)
    with predicting():
        report = Evaluation(predictor, data, options.batch_size)
        for other in options.ood:
            report.add_unlike(other, other_data(options, other, predictor, len(data)))
    if options.plots is not None:
        report.save_plots(Path(options.plots))
    if options.json:
        found = {"data": name, "split": options.split, **report.metrics}
        sys.stdout.write(as_json({**found, **({"ood": report.ood} if report.ood else {})}))
    else:
        show_metrics(f"{options.model} on {name}", {options.split: report.metrics})
        if report.ood:
            show_detections(report.ood)


class Evaluation:
    """A model's predictions for a data set, in one pass, and all that is said about them."""

    def __init__(self, predictor: Predictor, data: Dataset, batch_size: int) -> None:
        from gramian.metrics import classification_scores
        from gramian.train.predict.evaluate import as_numbers, metrics_of
        from gramian.train.predict.uncertainty import probabilities_and_scores

        self.predictor, self.data, self.batch_size = predictor, data, batch_size
        q = predictor.latent(data.x, batch_size)
        batches = zip(q.split(batch_size), data.y.split(batch_size), strict=True)
        self.metrics = as_numbers(metrics_of(predictor, batches))
        self.ood: dict[str, dict[str, dict[str, float]]] = {}
        self.unlike: dict[str, dict[str, Array]] = {}
        if predictor.class_names:
            self.probabilities, self.like = probabilities_and_scores(predictor, q)
            scores = classification_scores(self.probabilities, data.y)
            self.metrics |= {name: scores[name] for name in ("ece_mass", "classwise_ece", "aurc")}

    def add_unlike(self, name: str, x: Tensor) -> None:
        """Look at data that are unlike those of the training set."""
        from gramian.train.predict.uncertainty import detections, probabilities_and_scores

        q = self.predictor.latent(x, self.batch_size)
        _, self.unlike[name] = probabilities_and_scores(self.predictor, q)
        self.ood[name] = detections(self.like, self.unlike[name])

    def save_plots(self, folder: Path) -> None:
        """Pictures of all of it; none of a regression."""
        from gramian.experiments.plots import uncertainty_plots as plots
        from gramian.experiments.plots.style import save
        from gramian.metrics import calibration, classwise_calibration_errors, risk_coverage
        from gramian.train.predict.uncertainty import SCORES

        if not self.predictor.class_names:
            raise UsageError("--plots of evaluate are for classifiers, this model is a regression")
        p, y = self.probabilities, self.data.y
        save(plots.risk_coverage_curve(risk_coverage(p, y)), folder / "risk_coverage.png")
        save(
            plots.calibration_by_class(
                calibration(p, y, binning="mass"),
                classwise_calibration_errors(p, y),
                self.predictor.class_names,
            ),
            folder / "calibration_by_class.png",
        )
        for number, (name, scores) in enumerate(self.unlike.items(), start=1):
            figure = plots.unlike_histograms(self.like, scores, SCORES, name)
            save(figure, folder / f"unlike_{number}_{file_name(name)}.png")


def file_name(name: str) -> str:
    """A name of data, or a path, as part of the name of a file."""
    return "".join(c if c.isalnum() else "_" for c in Path(name).stem)[:60]


def evaluate_parser() -> Parser:
    """The options."""
    parser = Parser("evaluate", "Metrics of a trained model on a data set.")
    add_model_options(parser)
    add_data_options(parser)
    parser.add_argument(
        "--corrupt", type=str | None, default=None, metavar="KIND:STRENGTH",
        help="spoil the images first: noise, blur, contrast, brightness, shift or jpeg, with a "
        "strength from 1 to 5, such as blur:3",
    )  # fmt: skip
    parser.add_argument(
        "--ood", nargs="+", default=[], metavar="DATA",
        help="data unlike those of the training set, to see whether the model notices: names or "
        "paths of other images, which are made to fit, or noise",
    )  # fmt: skip
    parser.add_argument(
        "--plots", type=str | None, default=None,
        help="folder for pictures: calibration, risk against coverage, histograms of --ood",
    )  # fmt: skip
    add_batch_options(parser)
    return parser


def corrupted_data(options: Namespace, name: str, data: Dataset) -> tuple[str, Dataset]:
    """The data as ``--corrupt`` wants them."""
    if options.corrupt is None:
        return name, data
    from gramian.train.data.corrupt import Corruption, corrupted

    corruption = Corruption.parse(options.corrupt)
    return f"{name}, {corruption}", corrupted(data, corruption)


def other_data(options: Namespace, name: str, predictor: Predictor, number: int) -> Tensor:
    """Images of another data set, or noise, in the form that the model takes."""
    import torch

    from gramian.train.data import load
    from gramian.train.data.other_images import as_images_of, noise_images
    from gramian.train.runtime.seeds import generator

    shape = predictor.model.data_shape
    if name == NOISE:
        if len(shape) != 3:
            raise UsageError("--ood noise is for images, this model takes rows")
        x = noise_images(number, shape, generator(0, "unlike noise"))
    else:
        x = load(name, options.data_dir).test.x
    if x.dtype == torch.uint8 and not predictor.takes_bytes:
        raise UsageError(
            f"--ood {name}: 8-bit images, but the model was trained on floating-point ones: give "
            "an .npz file on the scale of its training"
        )
    return x if tuple(x.shape[1:]) == shape else as_images_of(x, shape)
