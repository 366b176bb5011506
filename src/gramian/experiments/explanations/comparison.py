"""Data to compare new ones with: how strange these are, and which training data are like them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from gramian.metrics import Array
from gramian.train.data import Dataset
from gramian.train.predict.predictor import Predictor
from gramian.train.predict.uncertainty import latent_scores
from gramian.train.record.files import write_text_atomically

STRANGE = 0.99  # share of the usual data that are less strange
QUANTILES = 1001
USUAL = "usual.json"


class Usual:
    """How strange a model finds data that it was not trained on, but that are of the same kind.

    Args:
        scores: of many such data, by the name of the score.
    """

    def __init__(self, scores: Mapping[str, Array]) -> None:
        self.scores = {name: np.sort(values) for name, values in scores.items()}

    @classmethod
    def of(cls, predictor: Predictor, x: Tensor) -> Usual:
        """The scores of raw data."""
        return cls(latent_scores(predictor, predictor.latent(x)))

    def shares(self, scores: Mapping[str, Array]) -> dict[str, Float[Array, " N"]]:
        """The share of the usual data with a smaller score, for each score that both have."""
        return {
            name: np.searchsorted(self.scores[name], values) / len(self.scores[name])
            for name, values in scores.items()
            if name in self.scores
        }

    def save(self, folder: Path, data: str) -> None:
        """Write a thousand quantiles, for models without their data."""
        at = np.linspace(0, 1, QUANTILES)
        quantiles = {name: np.quantile(values, at) for name, values in self.scores.items()}
        rounded = {name: [float(f"{v:.8g}") for v in values] for name, values in quantiles.items()}
        text = json.dumps({"data": data, "quantiles": rounded})
        write_text_atomically(folder / USUAL, text + "\n")

    @classmethod
    def load(cls, folder: Path) -> Usual | None:
        """What ``save`` wrote; None if there is nothing."""
        path = folder / USUAL
        if not path.is_file():
            return None
        quantiles = json.loads(path.read_text())["quantiles"]
        return cls({name: np.asarray(values) for name, values in quantiles.items()})


class Similar:
    """Training data by their features, among which those like new ones are looked for.

    Args:
        predictor: a deep kernel machine with inducing points.
        train: training data.
        layers: of which similarities are wanted; None for all.
    """

    def __init__(
        self, predictor: Predictor, train: Dataset, layers: tuple[str, ...] | None = None
    ) -> None:
        self.train = train
        self.features_of = predictor.for_features()
        self.layers = layers
        parts = [self._features(batch) for batch in train.x.split(256)]
        self.features = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _features(self, x: Tensor) -> dict[str, Float[Tensor, "N P"]]:
        return {
            name: normalize(phi)
            for name, phi in self.features_of(x).items()
            if self.layers is None or name in self.layers
        }

    def nearest(self, x: Tensor, k: int) -> dict[str, tuple[Tensor, Float[Tensor, "N k"]]]:
        """Places of the ``k`` most similar training data, and their similarity, by layer."""
        found = {}
        for name, phi in self._features(x).items():
            best = (phi @ self.features[name].mT).topk(min(k, len(self.train)))
            found[name] = (best.indices, best.values)
        return found
