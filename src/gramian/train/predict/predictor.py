"""A trained model with all it needs to meet raw data: scaling, class names, fixed samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from gramian._version import __version__
from gramian.gram.blocks import Marginals
from gramian.gram.errors import NumericalError, deferred_checks
from gramian.nn.contract import Trainable
from gramian.nn.explain import TOP, LayerFeatures, contributions, input_shares, pixel_shares
from gramian.nn.full_rank.full_rank_config import FullRankConfig
from gramian.nn.full_rank.full_rank_dkm import FullRankConvDKM, FullRankDKM, FullRankModel
from gramian.nn.joint import Joint, joint
from gramian.nn.likelihoods import Likelihood, even_points, received
from gramian.nn.model import DKM
from gramian.train.config import (
    ModelConfig,
    build_model,
    model_config_from_dict,
    model_config_to_dict,
    settings_from_dict,
)
from gramian.train.data import Normaliser, Scaler, scaler_from_dict
from gramian.train.data.dataset import check_weights
from gramian.train.data.own_npz import as_points
from gramian.train.predict.logit_scaling import LogitScaling, ScalingKind, fit_scaling
from gramian.train.pretrained import PretrainedError, model_folder
from gramian.train.record.files import in_one_line, write_atomically, write_text_atomically
from gramian.train.runtime.seeds import generator

Points = Tensor | npt.NDArray[Any] | Sequence[Any]
WEIGHTS, CONFIG = "model.safetensors", "config.json"
FULL_RANK = "full_rank"
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, slots=True)
class Predictor:
    """A model for raw data: uint8 images or unscaled numbers in, predictions out.

    Predictions use the same Monte-Carlo samples for every data point, so that they depend neither
    on the batch nor on the order. Each call first works out what does not depend on the data, which
    costs about as much as one batch (without inducing points: a third of an iteration of training);
    for many small calls take ``for_prediction()`` or ``for_features()`` once.

    Attributes:
        model: the trained model.
        config: what it was built from; None for a model made of parts, which cannot be saved.
        scaler: raw data → the model's input.
        class_names: of a classifier; empty for a regression.
        seed: of the Monte-Carlo samples.
        calibration: of a classifier's logits (``calibrate``); None as trained.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from gramian import Predictor
        >>> images = (load_digits().images[:3] * 255 / 16).astype("uint8")  # 0, 1 and 2
        >>> found = Predictor.from_pretrained("pretrained:digits").predictions(images)
        >>> found["probabilities"].shape, found["probabilities"].argmax(1)
        (torch.Size([3, 10]), tensor([0, 1, 2]))
    """

    model: Trainable | FullRankModel
    config: ModelConfig | FullRankConfig | None
    scaler: Scaler
    class_names: tuple[str, ...] = ()
    seed: int = 0
    calibration: LogitScaling | None = None

    @property
    def dkm(self) -> DKM:
        """The model, for what only a deep kernel machine with inducing points can do."""
        if not isinstance(self.model, DKM):
            name = type(self.model).__name__
            raise PretrainedError(
                f"this needs a deep kernel machine with inducing points, but the model is a {name}"
            )
        return self.model

    @property
    def trainable(self) -> Trainable:
        """The model, for training in batches."""
        if not isinstance(self.model, Trainable):
            raise PretrainedError(f"a {type(self.model).__name__} is not trained in batches")
        return self.model

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the model."""
        return self.model.dtype

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.device

    # ---- predictions ----

    def samples(self) -> Float[Tensor, "S 1 C"]:
        """The Monte-Carlo samples that all predictions share."""
        draw, likelihood = generator(self.seed, "prediction"), self.model.likelihood
        shape = likelihood.num_samples, self.model.num_outputs
        return even_points(*shape, draw, self.dtype).to(self.device)

    def for_prediction(self) -> Callable[[Tensor], Marginals]:
        """Raw data → q(f), calibrated, of the model as it is now.

        Raises, when called:
            NumericalError: a prediction is NaN or infinite.
        """
        predict = self.model.for_prediction()

        def marginals(batch: Tensor) -> Marginals:
            inputs = self._inputs(batch)
            self.model.check_data(inputs)
            q = predict(inputs)
            if not (q.mean.isfinite().all() and q.var.isfinite().all()):
                raise NumericalError(
                    "the prediction is NaN or infinite: the model's weights are damaged, or the "
                    "inputs are far from any that it was trained on"
                )
            return q if self.calibration is None else self.calibration(q)

        return marginals

    @property
    def takes_bytes(self) -> bool:
        """Whether it was trained on 8-bit images, and knows what the levels of a file mean."""
        return isinstance(self.scaler, Normaliser)

    def marginals(self, x: Tensor, batch_size: int = 256) -> Iterator[Marginals]:
        """q(f) in batches, calibrated."""
        return map(self.for_prediction(), x.split(batch_size))

    @torch.no_grad()
    def predictions(self, x: Points, batch_size: int = 256) -> dict[str, Tensor]:
        """Everything about raw data, in one pass: what the likelihood predicts, and f.

        ``probabilities`` [N, C] of the classes; or ``mean`` and ``variance`` [N, T] of the targets,
        in their own units. Always ``latent_mean`` [N, C] and ``latent_variance`` [N, 1] or [N, C]
        of the functions: logits, targets without their noise, or logarithms of rates. Images may
        come in any form that ``fit`` takes.
        """
        x, samples = self._points(x), self.samples()
        likelihood = self.model.likelihood
        parts = [described(likelihood, q, samples) for q in self.marginals(x, batch_size)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _points(self, x: Points) -> Tensor:
        """Raw data [N, *data_shape]."""
        x = x.detach() if isinstance(x, Tensor) else np.asarray(x)
        if tuple(x.shape[1:]) != self.model.data_shape and x.ndim > 2:
            x = as_points("x", x.cpu().numpy() if isinstance(x, Tensor) else x)
        points = torch.as_tensor(x)
        if points.dtype in (torch.float16, torch.bfloat16):
            return points.float()
        return points.double() if points.ndim == 2 and not points.is_floating_point() else points

    def probabilities(self, x: Tensor, batch_size: int = 256) -> Float[Tensor, "N C"]:
        """Class probabilities of a classifier."""
        return self.predictions(x, batch_size)["probabilities"]

    def mean_and_variance(
        self, x: Tensor, batch_size: int = 256
    ) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
        """Mean and variance of the targets of a regression, in their own units."""
        found = self.predictions(x, batch_size)
        return found["mean"], found["variance"]

    @torch.no_grad()
    def latent(self, x: Tensor, batch_size: int = 256) -> Marginals:
        """q(f) as the model has it, [N, C] and [N, 1] or [N, C]."""
        parts = list(self.marginals(x, batch_size))
        return Marginals(torch.cat([q.mean for q in parts]), torch.cat([q.var for q in parts]))

    # ---- explanations ----

    @torch.no_grad()
    def features(self, x: Points, batch_size: int = 256) -> dict[str, Float[Tensor, "N P"]]:
        """Features of raw data whose dot products are the learned similarity of each layer.

        ``input``, every layer by name, and ``output``: see ``nn/explain.py``.
        """
        parts = list(map(self.for_features(), self._points(x).split(batch_size)))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def for_features(self) -> Callable[[Tensor], dict[str, Float[Tensor, "N P"]]]:
        """Raw data → ``features`` of the model as it is now."""
        features = LayerFeatures(self.dkm)
        return lambda batch: features(self._inputs(batch))

    def similar(
        self,
        x: Points,
        among: Points,
        k: int = 5,
        layer: str = TOP,
    ) -> tuple[Tensor, Float[Tensor, "N k"]]:
        """The ``k`` data of ``among`` most similar to each of ``x``: their places and similarities.

        Similarity is the cosine under the learned kernel of a ``layer``: ``input``, a layer's name
        (``predictor.dkm.layers``), or ``output``. The most similar come first.
        """
        if not 1 <= k <= len(among):
            raise ValueError(f"k must be between 1 and the {len(among)} data points, got {k}")
        mine, others = self.features(x), self.features(among)
        if layer not in mine:
            raise ValueError(f"layer must be one of {', '.join(mine)}, got {layer!r}")
        cosines = normalize(mine[layer]) @ normalize(others[layer]).mT
        best = cosines.topk(k, dim=1)
        return best.indices, best.values

    @torch.no_grad()
    def contributions(self, x: Points, batch_size: int = 256) -> Float[Tensor, "N P C"]:
        """The share of each inducing point in each output; over the points they add up to its mean.

        Of logits, or of a target in standardised units; a calibration is left out.
        """
        batches = self._points(x).split(batch_size)
        return torch.cat([contributions(self.dkm, self._inputs(batch))[0] for batch in batches])

    @torch.no_grad()
    def kernel_with_inducing(self, x: Points, batch_size: int = 256) -> Float[Tensor, "N P"]:
        """K_ti of the output: the learned similarity of raw data with each inducing point."""
        batches = self._points(x).split(batch_size)
        return torch.cat([contributions(self.dkm, self._inputs(batch))[1] for batch in batches])

    def pixel_shares(self, x: Points, reference: Points) -> Float[Tensor, "N H W C"]:
        """The share of each pixel of the last map in each logit, beside a mean of reference images.

        They add up to the logit of the image less that of the reference.
        """
        inputs = (self._inputs(self._points(data)) for data in (x, reference))
        return pixel_shares(self.dkm, *inputs)[0]

    def input_shares(
        self,
        x: Points,
        reference: Points,
        classes: Tensor,
        batch_size: int = 64,
    ) -> Float[Tensor, "N H W"]:
        """The share of each pixel of an image in the logit of a class, beside the mean image.

        They add up to the logit of the image less that of the mean of the ``reference`` images, to
        a per cent or so. ``classes`` [N] has the class of each image.
        """
        mean = self._inputs(self._points(reference)).mean(0)
        parts = zip(self._points(x).split(batch_size), classes.split(batch_size), strict=True)
        return torch.cat(
            [
                input_shares(self.dkm, self._inputs(batch), mean, chosen.to(self.device))
                for batch, chosen in parts
            ]
        )

    def _inputs(self, points: Tensor) -> Tensor:
        """Raw data as the model takes them."""
        return self.scaler(points, self.dtype).to(self.device)

    def joint(self, x: Points) -> Joint:
        """q(f) of several rows together, with all of their covariance, as the model has it.

        For models of rows and for those without inducing points; memory grows with the square of
        the number of rows. A calibration is left out.
        """
        if not isinstance(self.model, DKM | FullRankModel):
            raise PretrainedError(f"a {type(self.model).__name__} has no joint distribution")
        return joint(self.model, self._inputs(self._points(x)))

    # ---- calibration ----

    def calibrate(
        self,
        x: Points,
        y: Points,
        kind: ScalingKind = "temperature",
        batch_size: int = 256,
        sample_weight: Points | None = None,
    ) -> Predictor:
        """The same classifier with probabilities scaled to suit data that it was not trained on.

        Args:
            x: raw data, held out.
            y: their class numbers.
            kind: temperature (one number, which leaves the order of the means) or vector (two
                for each class).
            batch_size: data points at once.
            sample_weight: [N]; a data point of weight 2 counts as two.
        """
        if not self.class_names:
            raise PretrainedError("calibrate is for classifiers, this model is a regression")
        plain = replace(self, calibration=None)
        labels = received(torch.as_tensor(y), self.device)
        self.model.likelihood.check(labels, len(x))
        q = plain.latent(self._points(x), batch_size)
        w = None
        if sample_weight is not None:
            w = torch.as_tensor(sample_weight).double()
            check_weights(w, len(x))
            w = received(w, self.device)
        scaling = fit_scaling(self.model.likelihood, q, labels, self.samples(), kind, w)
        return replace(self, calibration=scaling)

    # ---- files ----

    def settings(self) -> dict[str, Any]:
        """What the model is built from, as JSON values."""
        if self.config is None:
            raise PretrainedError(
                "a model made of parts has no configuration to be built from again: keep "
                "model.state_dict() and the code that made it"
            )
        if isinstance(self.config, FullRankConfig):
            return {"kind": FULL_RANK, **asdict(self.config)}
        return model_config_to_dict(self.config)

    def save_pretrained(self, folder: str | Path, origin: Mapping[str, Any] | None = None) -> None:
        """Write weights (safetensors) and everything else (JSON), without pickle.

        ``origin`` says which run made the model, of which data. Training data are written only if
        they are part of the model, as without inducing points.
        """
        from safetensors.torch import save

        description = {
            "gramian": __version__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "model": self.settings(),
            "scaler": self.scaler.to_dict(),
            "class_names": list(self.class_names),
            "seed": self.seed,
            "origin": dict(origin or {}),
        }
        if self.calibration is not None:
            description["calibration"] = asdict(self.calibration)
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: value.contiguous() for name, value in self.model.state_dict().items()}
        content = save(weights)
        description["digest"] = _digest(content, description)
        write_atomically(folder / WEIGHTS, lambda file: file.write(content))
        write_text_atomically(folder / CONFIG, json.dumps(description, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: torch.device | str = "cpu") -> Predictor:
        """Read what ``save_pretrained`` wrote: its folder, a run folder, or ``pretrained:NAME``.

        Raises:
            PretrainedError: the files are missing, damaged, or do not belong together.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        folder = model_folder(folder)
        try:
            description: dict[str, Any] = json.loads((folder / CONFIG).read_text())
            content = (folder / WEIGHTS).read_bytes()
            expected = description.pop("digest", None)  # models of old versions have none
            if expected not in (None, _digest(content, description)):
                raise ValueError(
                    f"{WEIGHTS} or {CONFIG} is not as it was saved. If somebody has edited it, and "
                    f"not a disk, take the field digest out of {CONFIG}"
                )
            predictor = cls._rebuild(description, load(content))
        except FileNotFoundError as error:
            raise PretrainedError(
                f"{folder} holds no saved model: {error.filename} is missing"
            ) from error
        except KeyError as error:
            raise PretrainedError(f"{folder / CONFIG} has no field {error}") from error
        except (SafetensorError, AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise PretrainedError(f"{folder} cannot be read: {in_one_line(error)}") from error
        predictor.model.to(device).eval()
        return predictor

    @classmethod
    def _rebuild(cls, description: dict[str, Any], weights: Mapping[str, Tensor]) -> Predictor:
        for name, value in weights.items():
            if value.is_floating_point() and not value.isfinite().all():
                raise ValueError(f"the weights {name} contain NaN or infinity")
        dtype, seed = description["dtype"], description["seed"]
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ValueError(f"seed must be an integer, got {seed!r}")
        model: Trainable | FullRankModel
        config: ModelConfig | FullRankConfig
        settings = description["model"]
        if not isinstance(settings, dict):
            raise ValueError(f"model must hold settings by name, got {settings!r}")
        if settings.get("kind") == FULL_RANK:
            rest = {name: value for name, value in settings.items() if name != "kind"}
            full = settings_from_dict(FullRankConfig, rest, "a model without inducing points")
            x, y = weights["train_inputs"], weights["train_targets"]
            check_fits(lambda: build_full_rank(x.to("meta"), y, full), weights, settings)
            config, model = full, build_full_rank(x, y, full)
        else:
            batched = model_config_from_dict(settings)
            check_fits(lambda: build_model(batched), weights, settings)
            config, model = batched, build_model(batched, DTYPES[dtype])
        model.load_state_dict(weights)
        if model.dtype != DTYPES[dtype]:
            raise ValueError(f"dtype is {dtype}, but the weights are {model.dtype}")
        names = description["class_names"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"class_names must be a list of strings, got {names!r}")
        expected = model.num_outputs if model.likelihood.targets == "classes" else 0
        if len(set(names)) != expected or len(names) != expected:
            raise ValueError(
                f"class_names must be {expected} different names for this model, got {len(names)}"
            )
        saved = description.get("calibration")
        calibration = None if saved is None else LogitScaling.from_dict(saved, expected)
        scaler = scaler_from_dict(description["scaler"])
        return cls(model, config, scaler, tuple(names), seed, calibration)


def _digest(weights: bytes, description: Mapping[str, Any]) -> str:
    """Of all that is saved of a model."""
    return hashlib.sha256(weights + json.dumps(description, sort_keys=True).encode()).hexdigest()


def described(likelihood: Likelihood, q: Marginals, samples: Tensor) -> dict[str, Tensor]:
    """What ``Predictor.predictions`` says about a batch."""
    latent = likelihood.latent(q)
    prediction = likelihood.predict(q, samples)
    return {**prediction, "latent_mean": latent.mean, "latent_variance": latent.var}


def check_fits(
    build: Callable[[], torch.nn.Module], weights: Mapping[str, Tensor], settings: Mapping[str, Any]
) -> None:
    """Raise unless a model has the names and shapes of ``weights``; it is built without storage.

    The message names the settings that hold a size which the weights do not have.
    """
    try:
        with torch.device("meta"), deferred_checks():
            model = build()
    except RuntimeError as error:
        largest = max(settings, key=lambda key: max(_numbers_of(settings[key]), default=0))
        raise ValueError(
            f"the model cannot be built, its largest setting is {largest} = {settings[largest]}: "
            f"{error}"
        ) from error
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    lacking = [name for name in wanted if name not in found]
    strange = [name for name in found if name not in wanted]
    if lacking or strange:
        raise ValueError(
            f"{WEIGHTS} does not belong to {CONFIG}: it lacks {', '.join(lacking[:5]) or 'nothing'}"
            f" and has {', '.join(strange[:5]) or 'nothing'} besides"
        )
    for name, shape in wanted.items():
        if shape != found[name] and found[name]:  # old models have numbers for some
            sizes = set(shape) - set(found[name])
            fields = [key for key, value in settings.items() if sizes & _numbers_of(value)]
            raise ValueError(
                f"{name} has the shape {found[name]} in {WEIGHTS}, but {shape} by {CONFIG}: "
                f"{' or '.join(fields) or 'its settings'} cannot be right"
            )


def _numbers_of(value: object) -> set[int]:
    """The integers of a setting."""
    values = value if isinstance(value, list | tuple) else [value]
    return {number for number in values if isinstance(number, int)}


def build_full_rank(x: Tensor, y: Tensor, config: FullRankConfig) -> FullRankModel:
    """The model for rows, or for images."""
    return (FullRankDKM if x.ndim == 2 else FullRankConvDKM)(x, y, config)
