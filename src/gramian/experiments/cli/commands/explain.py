"""``gramian explain``: one page on why a model says what it says about some images."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from gramian.experiments.cli.commands.predict import read
from gramian.experiments.cli.options import Parser, UsageError
from gramian.experiments.cli.run_data import add_comparison_options, fitting_data, some_data
from gramian.experiments.cli.saved_model import (
    add_device_option,
    add_model_options,
    load_predictor,
    named_model,
    output_folder,
    predicting,
)
from gramian.experiments.cli.terminal import as_json
from gramian.experiments.escapes import printable, say

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from gramian.train.predict.predictor import Predictor


def run(words: Sequence[str]) -> None:
    """Explain, and write the page."""
    options = explain_parser().parse_args(list(words))
    if not (options.inputs or options.test or options.check):
        raise UsageError("nothing to explain: name image files, or --test NUMBERS")
    predictor = load_predictor(options)
    shape = predictor.model.data_shape
    if len(shape) != 3 or not predictor.class_names or not predictor.takes_bytes:
        raise UsageError("explain is for classifiers of 8-bit images")
    if not predictor.dkm.can_freeze:
        raise UsageError(
            "explain is for models that normalise by running statistics: with norm.statistics "
            "batch a prediction depends on the other images"
        )
    names, x = images(options, predictor)
    folder = output_folder(options)
    if options.check:
        check(options, predictor, folder)
    if not names:
        return

    from gramian.experiments.explanations.explanation import Explainer, explanation_page
    from gramian.experiments.explanations.pictures import side_by_side
    from gramian.train.record.files import write_atomically, write_text_atomically

    train, test = (some_data(options, split, shape) for split in ("train", "test"))
    with predicting():
        explainer = Explainer(predictor, train, test.x, options.similar)
        found = [explainer.explain(name, image) for name, image in zip(names, x, strict=True)]
    folder.mkdir(parents=True, exist_ok=True)
    title = f"Why {named_model(options).resolve().name} says so"
    write_text_atomically(folder / "explanation.html", explanation_page(title, found))
    for number, each in enumerate(found, start=1):
        picture = side_by_side([each.picture, *(heat for _, heat in each.heat)])
        write_atomically(folder / f"explanation_{number}.png", partial(picture.save, format="PNG"))
    if options.json:
        rows = [{"input": e.name, "class": e.classes[0][0], "logit": e.logit} for e in found]
        sys.stdout.write(as_json({"file": str(folder / "explanation.html"), "images": rows}))
        return
    for each in found:
        label, probability, _ = each.classes[0]
        say(printable(f"{each.name}: {label}, {probability:.1%}") + "\n")
    say(f"{folder / 'explanation.html'}\n")


def explain_parser() -> Parser:
    """The options."""
    parser = Parser("explain", "Why a model says what it says about images: one HTML page.")
    add_model_options(parser)
    parser.add_argument("inputs", nargs="*", help="image files, or folders of image files")
    parser.add_argument(
        "--test", nargs="+", type=NonNegativeInt, default=[],
        help="numbers of images of the test set, instead of or besides files",
    )  # fmt: skip
    add_comparison_options(parser)
    parser.add_argument("--similar", type=PositiveInt, default=5, help="neighbours per layer")
    parser.add_argument(
        "--output", type=str | None, default=None, help="folder; null: the run's own"
    )
    parser.add_argument(
        "--check", type=NonNegativeInt, default=0, metavar="NUMBER",
        help="see on so many test images whether the pixels said to matter matter: deletion.png",
    )  # fmt: skip
    add_device_option(parser)
    return parser


def check(options: Namespace, predictor: Predictor, folder: Path) -> None:
    """Take pixels away, in the order of their shares and in random order."""
    import torch

    from gramian.experiments.explanations.deletion import deletion_curves, deletion_figure
    from gramian.experiments.plots.style import save
    from gramian.experiments.statistics import as_text
    from gramian.train.runtime.seeds import generator

    shape = predictor.model.data_shape
    train, test = (fitting_data(options, split, shape) for split in ("train", "test"))
    draw = generator(0, "deletion")
    some = test.x[torch.randperm(len(test), generator=draw)[: options.check]]
    reference = train.x[torch.randperm(len(train), generator=draw)[:256]]
    with predicting():
        curves = deletion_curves(predictor, some, reference, draw)
    title = f"{named_model(options).resolve().name}: {len(some)} test images"
    save(deletion_figure(curves, title), folder / "deletion.png")
    gain = curves.gain()
    if options.json:
        found = {"gain": gain.mean, "standard_error": gain.standard_error, "num": gain.n}
        sys.stdout.write(as_json({"file": str(folder / "deletion.png"), **found}))
        return
    say(
        f"without the pixels of the largest shares the probability is lower by "
        f"{as_text(gain, 4)} than without random ones ({gain.n} images)\n"
        f"{folder / 'deletion.png'}\n"
    )


def images(options: Namespace, predictor: Predictor) -> tuple[list[str], Tensor]:
    """Names and values of what is to be explained."""
    import torch

    shape = predictor.model.data_shape
    names: list[str] = []
    parts: list[Tensor] = []
    if options.inputs:
        found, x = read(options.inputs, predictor)
        names += found
        parts.append(x)
    if options.test:
        test = fitting_data(options, "test", shape)
        if max(options.test) >= len(test):
            raise UsageError(f"--test: the test set has {len(test)} images, from 0 on")
        names += [f"test image {n} ({test.class_names[int(test.y[n])]})" for n in options.test]
        parts.append(test.x[torch.tensor(options.test)])
    return names, torch.cat(parts) if parts else torch.empty(0)
