"""``gramian map``: how classes come apart from layer to layer, as a picture and as a page."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jsonargparse.typing import PositiveInt

from gramian.experiments.cli.options import Parser, UsageError
from gramian.experiments.cli.run_data import add_data_options, check_shape, chosen_data
from gramian.experiments.cli.saved_model import (
    add_batch_options,
    add_model_options,
    load_predictor,
    named_model,
    output_folder,
    predicting,
)
from gramian.experiments.cli.terminal import as_json
from gramian.experiments.escapes import printable, say


def run(words: Sequence[str]) -> None:
    """Draw the map."""
    options = map_parser().parse_args(list(words))
    if options.points < 3:
        raise UsageError(f"a map needs 3 data points or more, got {options.points}")
    predictor = load_predictor(options)
    if not predictor.class_names:
        raise UsageError("map is for classifiers, this model is a regression")
    name, data = chosen_data(options)
    check_shape(name, data, predictor.model.data_shape)

    import numpy as np
    import torch

    from gramian.experiments.explanations.layer_map import layer_maps, page, picture
    from gramian.experiments.plots.style import save
    from gramian.train.record.files import write_text_atomically
    from gramian.train.runtime.seeds import generator

    order = torch.randperm(len(data), generator=generator(0, "map"))[: options.points]
    x, labels = data.x[order], np.asarray(data.y[order])
    if len(x) < 3:
        raise UsageError(f"a map needs 3 data points or more, got {len(x)}")
    with predicting():
        features = predictor.features(x, options.batch_size)
    maps = layer_maps({key: phi.cpu().numpy() for key, phi in features.items()}, labels)
    title = f"{named_model(options).resolve().name} on {name}: {len(x):,} points of {options.split}"
    images = x.numpy() if data.images and x.dtype == torch.uint8 else None
    folder = output_folder(options)
    save(picture(maps, labels, data.class_names, title), folder / "map.png")
    text = page(maps, labels, data.class_names, title, images)
    write_text_atomically(folder / "map.html", text)
    found = {each.name: each.agreement for each in maps}
    if options.json:
        files = [str(folder / "map.png"), str(folder / "map.html")]
        sys.stdout.write(as_json({"files": files, "agreement": found}))
        return
    for layer, agreement in found.items():
        say(f"{printable(layer):<16} {agreement:6.1%} of the ten nearest neighbours agree\n")
    say(f"{folder / 'map.png'}\n{folder / 'map.html'}\n")


def map_parser() -> Parser:
    """The options."""
    parser = Parser("map", "Kernel PCA of the learned Gram matrix at each layer.")
    add_model_options(parser)
    add_data_options(parser)
    parser.add_argument("--points", type=PositiveInt, default=1000, help="data points to show")
    parser.add_argument(
        "--output", type=str | None, default=None, help="folder; null: the run's own"
    )
    add_batch_options(parser)
    return parser
