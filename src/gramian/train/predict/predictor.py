"""A trained model with all it needs to meet raw data: scaling, class names, fixed samples."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from gramian._version import __version__
from gramian.gram.blocks import Marginals
from gramian.nn.contract import Trainable
from gramian.nn.full_rank.full_rank_dkm import FullRankModel
from gramian.nn.likelihoods import Categorical, Gaussian, draw_noise
from gramian.nn.model import DKM
from gramian.train.config import (
    ModelConfig,
    build_model,
    model_config_from_dict,
    model_config_to_dict,
)
from gramian.train.data import Scaler, scaler_from_dict
from gramian.train.record.files import in_one_line, write_atomically, write_text_atomically
from gramian.train.runtime.seeds import generator

WEIGHTS, CONFIG = "model.safetensors", "config.json"
Me = TypeVar("Me", bound="BasePredictor")


class PretrainedError(Exception):
    """A folder does not hold a saved model that this version can read."""

    exit_code = 1


class Surroundings(NamedTuple):
    """What a predictor has besides its model."""

    scaler: Scaler
    class_names: tuple[str, ...]
    target_scale: tuple[tuple[float, ...], tuple[float, ...]]
    seed: int


class BasePredictor(ABC):
    """Predictions and files of any model that gives q(f) of raw data in batches.

    Predictions use the same Monte-Carlo samples for every data point, so that they depend neither
    on the batch nor on the order.
    """

    __slots__ = ()
    model: Trainable | FullRankModel
    scaler: Scaler
    class_names: tuple[str, ...]
    target_scale: tuple[tuple[float, ...], tuple[float, ...]]
    seed: int

    @abstractmethod
    def marginals(self, x: Tensor, batch_size: int = 256) -> Iterator[Marginals]:
        """q(f) in batches."""

    @abstractmethod
    def _describe_model(self) -> dict[str, Any]:
        """What the model is built from, as JSON values."""

    @classmethod
    @abstractmethod
    def _rebuild(
        cls: type[Me],
        description: dict[str, Any],
        weights: Mapping[str, Tensor],
        around: Surroundings,
    ) -> Me:
        """The predictor with the model that ``_describe_model`` described."""

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the model."""
        return next(self.model.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def samples(self) -> Float[Tensor, "S 1 C"]:
        """The Monte-Carlo samples that all predictions share."""
        draw, shape = generator(self.seed, "prediction"), (1, self.model.num_outputs)
        number = self.model.likelihood.num_samples
        return draw_noise(number, shape, draw, self.dtype).to(self.device)

    @torch.no_grad()
    def latent(self, x: Tensor, batch_size: int = 256) -> Marginals:
        """Mean and variance of the latent functions, [N, C] and [N, 1] or [N, C]."""
        parts = list(self.marginals(x, batch_size))
        return Marginals(torch.cat([q.mean for q in parts]), torch.cat([q.var for q in parts]))

    @torch.no_grad()
    def probabilities(self, x: Tensor, batch_size: int = 256) -> Float[Tensor, "N C"]:
        """Class probabilities."""
        likelihood, samples = self.model.likelihood, self.samples()
        assert isinstance(likelihood, Categorical)
        parts = [likelihood.predict(q, samples) for q in self.marginals(x, batch_size)]
        return torch.cat(parts)

    @torch.no_grad()
    def mean_and_variance(
        self, x: Tensor, batch_size: int = 256
    ) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
        """Mean and variance of the targets of a regression, in their own units."""
        likelihood, samples = self.model.likelihood, self.samples()
        assert isinstance(likelihood, Gaussian)
        parts = [likelihood.predict(q, samples) for q in self.marginals(x, batch_size)]
        shift, scale = (samples.new_tensor(values) for values in self.target_scale)
        mean = torch.cat([mean for mean, _ in parts]) * scale + shift
        return mean, torch.cat([var for _, var in parts]) * scale.square()

    def save_pretrained(self, folder: str | Path, origin: Mapping[str, Any] | None = None) -> None:
        """Write weights (safetensors) and everything else (JSON), without pickle.

        ``origin`` says which run made the model, of which data. Training data are written only if
        they are part of the model, as without inducing points.
        """
        from safetensors.torch import save

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: value.contiguous() for name, value in self.model.state_dict().items()}
        description = {
            "gramian": __version__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "model": self._describe_model(),
            "scaler": self.scaler.to_dict(),
            "class_names": list(self.class_names),
            "target_scale": [list(values) for values in self.target_scale],
            "seed": self.seed,
            "origin": dict(origin or {}),
        }
        write_atomically(folder / WEIGHTS, lambda file: file.write(save(weights)))
        write_text_atomically(folder / CONFIG, json.dumps(description, indent=2) + "\n")

    @classmethod
    def from_pretrained(
        cls: type[Me], folder: str | Path, device: torch.device | str = "cpu"
    ) -> Me:
        """Read what ``save_pretrained`` wrote."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = Path(folder)
        try:
            description: dict[str, Any] = json.loads((folder / CONFIG).read_text())
            mean, std = description["target_scale"]
            around = Surroundings(
                scaler_from_dict(description["scaler"]),
                tuple(description["class_names"]),
                (tuple(mean), tuple(std)),
                description["seed"],
            )
            predictor = cls._rebuild(description, load_file(folder / WEIGHTS), around)
            predictor.model.to(device).eval()
            return predictor
        except FileNotFoundError as error:
            missing = error.filename or folder / WEIGHTS  # safetensors names no file
            raise PretrainedError(f"{folder} holds no saved model: {missing} is missing") from error
        except (
            SafetensorError,
            json.JSONDecodeError,
            KeyError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise PretrainedError(f"{folder} cannot be read: {in_one_line(error)}") from error


@dataclass(frozen=True, slots=True)
class Predictor(BasePredictor):
    """A model for raw data: uint8 images or unscaled rows in, predictions out.

    Predictions use the same Monte-Carlo samples for every data point, so that they depend neither
    on the batch nor on the order. Each call freezes the model first, which costs about as much as
    one batch; for many small calls take ``model.freeze()`` once.

    Attributes:
        model: the trained model.
        config: what it was built from.
        scaler: raw data → the model's input.
        class_names: of a classifier; empty for a regression.
        target_scale: (mean, standard deviation) of each target of a regression.
        seed: of the Monte-Carlo samples.
    """

    model: Trainable
    config: ModelConfig
    scaler: Scaler
    class_names: tuple[str, ...] = ()
    target_scale: tuple[tuple[float, ...], tuple[float, ...]] = ((0.0,), (1.0,))
    seed: int = 0

    @property
    def dkm(self) -> DKM:
        """The model, for what only a deep kernel machine can do."""
        if not isinstance(self.model, DKM):
            name = type(self.model).__name__
            raise PretrainedError(f"this needs a deep kernel machine, but the model is a {name}")
        return self.model

    def marginals(self, x: Tensor, batch_size: int = 256) -> Iterator[Marginals]:
        """q(f) in batches, from the model's frozen form."""
        predict, device = self.model.for_prediction(), self.device
        for batch in x.split(batch_size):
            inputs = self.scaler(batch, self.dtype).to(device)
            self.model.check_data(inputs)
            yield predict(inputs)

    def _describe_model(self) -> dict[str, Any]:
        return model_config_to_dict(self.config)

    @classmethod
    def _rebuild(
        cls, description: dict[str, Any], weights: Mapping[str, Tensor], around: Surroundings
    ) -> Predictor:
        config = model_config_from_dict(description["model"])
        model = build_model(config).to(getattr(torch, description["dtype"]))
        model.load_state_dict(weights)
        return cls(model, config, *around)
