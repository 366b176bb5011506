"""A model without inducing points that meets raw data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from gramian.gram.blocks import Marginals
from gramian.gram.conditional import VarianceCheck
from gramian.nn.full_rank.full_rank_config import FullRankConfig
from gramian.nn.full_rank.full_rank_dkm import FullRankConvDKM, FullRankDKM, FullRankModel
from gramian.nn.steps.kernels import Jitter
from gramian.train.data import RowScaler
from gramian.train.predict.predictor import BasePredictor, PretrainedError, Surroundings

KIND = "full_rank"


@dataclass(frozen=True, slots=True)
class FullRankPredictor(BasePredictor):
    """Unscaled rows or images in, predictions out.

    Each call works out the training points' way through the layers first, which costs about as
    much as a third of an iteration of training. The training data are part of the model, and so of
    its files.

    Attributes:
        model: the trained model.
        scaler: of the features of rows, or of the channels of images.
        class_names: of a classifier; empty for a regression.
        target_scale: (mean, standard deviation) of each target of a regression.
        seed: of the Monte-Carlo samples.
    """

    model: FullRankModel
    scaler: RowScaler
    class_names: tuple[str, ...] = ()
    target_scale: tuple[tuple[float, ...], tuple[float, ...]] = ((0.0,), (1.0,))
    seed: int = 0

    @torch.no_grad()
    def marginals(self, x: Tensor, batch_size: int = 256) -> Iterator[Marginals]:
        """q(f) in batches of ``batch_size`` pixels, or of as many points as there are in training.

        So a batch of images needs less memory than training did.
        """
        train, chain = self.model.train_inputs, self.model.inducing_chain()
        num_pixels = train[0, 0].numel()
        for batch in x.split(max(len(train), batch_size // num_pixels)):
            inputs = scale_channels(self.scaler, batch, self.dtype).to(self.device)
            yield self.model.predict(inputs, chain)

    def _describe_model(self) -> dict[str, Any]:
        return {"kind": KIND, **asdict(self.model.config)}

    @classmethod
    def _rebuild(
        cls, description: dict[str, Any], weights: Mapping[str, Tensor], around: Surroundings
    ) -> FullRankPredictor:
        values = dict(description["model"])
        kind = values.pop("kind")
        if kind != KIND:
            raise PretrainedError(f"this is a model of kind {kind!r}, not {KIND!r}")
        values["kernel_jitter"] = Jitter(**values["kernel_jitter"])
        values["variance_check"] = VarianceCheck(**values["variance_check"])
        values["strides"] = tuple(values["strides"])
        x, y = weights["train_inputs"], weights["train_targets"]
        model = build_full_rank(x, y, FullRankConfig(**values))
        model.load_state_dict(weights)
        return cls(model, RowScaler.from_dict(description["scaler"]), *around[1:])


def build_full_rank(x: Tensor, y: Tensor, config: FullRankConfig) -> FullRankModel:
    """The model for rows, or for images."""
    return (FullRankDKM if x.ndim == 2 else FullRankConvDKM)(x, y, config)


def scale_channels(scaler: RowScaler, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The scaling of each feature of rows [B, D], or each channel of images [B, D, H, W]."""
    pixels = x.movedim(1, -1)
    scaled = scaler(pixels.reshape(-1, x.shape[1]), dtype)
    return scaled.reshape(pixels.shape).movedim(-1, 1).contiguous()
