"""Do the pixels that are said to matter matter? Take them away and see.

The deletion curve (Petsiuk et al. 2018): pixels of an image are replaced by the mean of the
reference images, those with the largest shares first, and the probability of the predicted class is
watched. It must fall faster than when pixels are taken in a random order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from gramian.experiments.statistics import Summary, summarise
from gramian.metrics import Array
from gramian.train.predict.predictor import Predictor

if TYPE_CHECKING:
    from matplotlib.figure import Figure


STEPS = 16  # in which an image disappears


@dataclass(frozen=True)
class DeletionCurves:
    """The probability of each image's predicted class while its pixels are taken away.

    Attributes:
        by_share: those with the largest shares first.
        at_random: in random orders, the mean over some.
    """

    by_share: Float64[Array, "N steps_and_one"]
    at_random: Float64[Array, "N steps_and_one"]

    @property
    def removed(self) -> Float64[Array, " steps_and_one"]:
        """The share of the image that is gone."""
        return np.linspace(0, 1, self.by_share.shape[1])

    def gain(self) -> Summary:
        """How much lower the curve by shares is, as a mean over its length and over the images."""
        return summarise((self.at_random - self.by_share)[:, 1:-1].mean(1).tolist())


def deletion_curves(
    predictor: Predictor,
    x: UInt8[Tensor, "N C H W"],
    reference: UInt8[Tensor, "M C H W"],
    draw: torch.Generator,
    repeats: int = 4,
) -> DeletionCurves:
    """Take pixels of images away.

    Args:
        predictor: a classifier of uint8 images.
        x: the images.
        reference: images whose mean takes the place of what is taken away.
        draw: random orders.
        repeats: how many random orders.
    """
    classes = predictor.probabilities(x).argmax(1).cpu()
    shares = predictor.input_shares(x, reference, classes).cpu().flatten(1)
    mean = reference.double().mean(0).round().byte()

    def curve(order: Int64[Tensor, "N pixels"]) -> Float64[Array, "N steps_and_one"]:
        place = order.argsort(1).view(len(x), 1, *x.shape[2:])  # when each pixel goes
        found = []
        for number in np.linspace(0, order.shape[1], STEPS + 1).round():
            left = torch.where(place < number, mean, x)
            p = predictor.probabilities(left).double().cpu()
            found.append(p.gather(1, classes[:, None])[:, 0])
        return torch.stack(found, 1).numpy()

    orders = [torch.rand(shares.shape, generator=draw).argsort(1) for _ in range(repeats)]
    by_chance = np.mean([curve(order) for order in orders], 0)
    return DeletionCurves(curve(shares.argsort(1, descending=True)), by_chance)


def deletion_figure(curves: DeletionCurves, title: str) -> Figure:
    """Both curves with their standard errors."""
    from matplotlib.figure import Figure

    from gramian.experiments.plots.style import set_title

    figure = Figure(figsize=(5.5, 4), layout="constrained")
    axes = figure.subplots()
    for label, values in (
        ("largest shares first", curves.by_share),
        ("in random order", curves.at_random),
    ):
        mean, error = values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))
        axes.plot(curves.removed, mean, "o-", label=label)
        axes.fill_between(curves.removed, mean - error, mean + error, alpha=0.25)
    axes.set(xlabel="share of the image taken away", ylabel="probability of the predicted class")
    axes.legend()
    set_title(figure, title)
    return figure
