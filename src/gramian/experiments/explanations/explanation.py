"""Why a model says what it says about an image: all that ``gramian explain`` shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from gramian.experiments.explanations.comparison import STRANGE, Similar, Usual
from gramian.experiments.explanations.pictures import as_picture, data_url, enlarged
from gramian.experiments.web_page import render
from gramian.nn.likelihoods.likelihood import sample
from gramian.train.data import Dataset
from gramian.train.predict.predictor import Predictor
from gramian.train.predict.uncertainty import SCORES, probabilities_and_scores

SIDE = 160  # of the image that is explained, in pixels
SMALL = 64  # of the others
BLUE, RED = (0, 114, 178), (213, 94, 0)


@dataclass(frozen=True)
class Neighbour:
    """A training image, and how similar it is."""

    picture: str
    label: str
    similarity: float


@dataclass(frozen=True)
class Share:
    """An inducing point's share in a logit, shown by the training image that is most like it."""

    number: int
    value: float
    picture: str
    label: str


@dataclass(frozen=True)
class Explanation:
    """Everything about one image.

    Attributes:
        name: of the image.
        picture: the image.
        classes: name, probability and its deviation under q(f) of the most probable classes.
        strangeness: share of the usual images with a smaller score, by score.
        neighbours: most similar training images, by layer.
        heat: pictures with the shares of the pixels in the logits of the first two classes.
        in_favour: inducing points with the largest shares in the first logit.
        against: those with the smallest.
        logit: of the first class, to which the shares of all inducing points add up.
    """

    name: str
    picture: str
    classes: list[tuple[str, float, float]]
    strangeness: dict[str, float]
    neighbours: dict[str, list[Neighbour]]
    heat: list[tuple[str, str]]
    in_favour: list[Share]
    against: list[Share]
    logit: float

    @property
    def strange(self) -> bool:
        """Whether some score is larger than for nearly all usual images."""
        return any(share > STRANGE for share in self.strangeness.values())


class Explainer:
    """A model, and images to compare with.

    Args:
        predictor: a classifier of uint8 images, with inducing points.
        train: training images, among which similar ones are looked for.
        usual: images that the model was not trained on, of which it is as certain as can be asked.
        num_similar: neighbours to show for each layer.
    """

    def __init__(
        self, predictor: Predictor, train: Dataset, usual: Tensor, num_similar: int = 5
    ) -> None:
        self.predictor, self.train, self.num_similar = predictor, train, num_similar
        self.similar = Similar(predictor, train)
        self.usual = Usual.of(predictor, usual)
        K_ti = predictor.kernel_with_inducing(train.x)
        norms = predictor.features(train.x)["output"].norm(dim=1, keepdim=True)
        self.like = (K_ti / norms).argmax(0)  # the image most like each inducing point

    def explain(self, name: str, image: Tensor) -> Explanation:
        """One image, uint8 [C, H, W]."""
        predictor, x = self.predictor, image[None]
        q = predictor.latent(x)
        p, scores = probabilities_and_scores(predictor, q)
        spread = sample(q, predictor.samples()).softmax(-1).std(0)[0]
        order = np.argsort(-p[0])[: min(5, p.shape[1])]
        classes = [
            (predictor.class_names[c], float(p[0, c]), float(spread[c])) for c in order.tolist()
        ]
        parts = predictor.contributions(x)[0]
        first = int(order[0])
        ranked = parts[:, first].argsort(descending=True)
        reference = self.train.x[: min(len(self.train), 256)]
        two = torch.as_tensor(order[:2].copy())
        pixels = predictor.input_shares(x.expand(len(two), -1, -1, -1), reference, two)
        heat = [
            (predictor.class_names[c], data_url(heat_map(image.numpy(), shares)))
            for c, shares in zip(two.tolist(), pixels.double().cpu().numpy(), strict=True)
        ]
        return Explanation(
            name=name,
            picture=data_url(enlarged(as_picture(image.numpy()), SIDE)),
            classes=classes,
            strangeness={
                SCORES[score]: float(shares[0])
                for score, shares in self.usual.shares(scores).items()
            },
            neighbours=self.neighbours(x),
            heat=heat,
            in_favour=[self.share(int(n), float(parts[n, first])) for n in ranked[:4]],
            against=[self.share(int(n), float(parts[n, first])) for n in ranked.flip(0)[:4]],
            logit=float(parts[:, first].sum()),
        )

    def neighbours(self, x: Tensor) -> dict[str, list[Neighbour]]:
        """The most similar training images, layer by layer."""
        return {
            layer: [
                Neighbour(*self.shown(int(n)), float(value))
                for n, value in zip(places[0], values[0], strict=True)
            ]
            for layer, (places, values) in self.similar.nearest(x, self.num_similar).items()
        }

    def shown(self, number: int) -> tuple[str, str]:
        """A training image, and the name of its class."""
        picture = enlarged(as_picture(self.train.x[number].numpy()), SMALL)
        return data_url(picture), self.train.class_names[int(self.train.y[number])]

    def share(self, point: int, value: float) -> Share:
        """An inducing point's share."""
        return Share(point, value, *self.shown(int(self.like[point])))


def heat_map(image: NDArray[np.uint8], shares: NDArray[np.float64]) -> Image.Image:
    """The image in grey, blue where it speaks for a class and red where it speaks against it."""
    grey = enlarged(as_picture(image).convert("L"), SIDE)
    strongest = float(np.abs(shares).max()) or 1.0
    levels = np.round(127.5 + 127.5 * shares / strongest).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(levels).resize(grey.size, Image.Resampling.BICUBIC))
    signed = (smooth.astype(np.float64) - 127.5) / 127.5
    colour = np.where(signed[..., None] > 0, BLUE, RED)
    weight = 0.7 * np.abs(signed)[..., None]
    mixed = (1 - weight) * np.asarray(grey, dtype=np.float64)[..., None] + weight * colour
    return Image.fromarray(mixed.round().clip(0, 255).astype(np.uint8))


def explanation_page(title: str, explanations: list[Explanation]) -> str:
    """One page with all of them, and everything inside."""
    files = ("explanation.html.j2", "explanations.css")
    return render(str(__package__), *files, title=title, explanations=explanations)
