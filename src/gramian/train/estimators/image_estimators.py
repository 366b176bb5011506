"""The convolutional deep kernel machine as a scikit-learn estimator, for images."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, validate_data
from torch import Tensor

from gramian.gram.skr import SKR
from gramian.nn.conv_dkm import ConvDKMConfig
from gramian.nn.dkm_config import KernelConfig
from gramian.nn.steps.kernels import Bandwidth
from gramian.nn.steps.whitening import Whitening
from gramian.train.data import Augmentation, Dataset, Normaliser
from gramian.train.defaults import IMAGE_MODEL
from gramian.train.estimators.base import (
    Array,
    check_choice,
    check_count,
    refuse_channels_last,
    refuse_dates,
    tensor,
)
from gramian.train.estimators.epochs import EpochEstimator, Optimiser, Plan, Precision, Schedule
from gramian.train.estimators.kinds import Classifier
from gramian.train.predict.logit_scaling import ScalingKind

BATCH = 64
PIXELS = [np.float64, np.float32, np.uint8]  # any other type becomes the first


@dataclass(kw_only=True, eq=False, repr=False)
class ConvDKMClassifier(Classifier, EpochEstimator):
    """A convolutional deep kernel machine for the classes of images.

    Images are (n, C, H, W) or, in grey, (n, H, W); or flat (n, C·H·W) with ``image_shape``, which
    also lets pass what looks like (n, H, W, C) and is refused otherwise: a last axis of 4 or fewer,
    and more of the two before. They are held as 8-bit numbers: uint8 as they are, any other type in
    256 levels between the smallest and the largest value in training, and cut off there in
    prediction.

        p(y | x) = E_q[softmax(f(x))_y],  q(f(x)) = N(mean, var)

    The defaults are for small images; ``num_inducing=(512, 1024, 2048), strides=(2, 2, 2),
    blocks_per_stage=3, whitening=True, crop_padding=4, flip=True, recipe="paper",
    skr_gamma_power=1, optimiser="adam", lr=0.01, schedule="steps", max_epochs=1200`` is the
    architecture of the paper's CIFAR-10 model; start values, statistics and samples as published
    are those of ``gramian train --preset paper_cifar10``. Further arguments, attributes and methods
    are those of ``DKMClassifier``.

    Args:
        image_shape: (channels, height, width); needed for flat images only.
        num_inducing: inducing points of each stage.
        strides: stride of each stage.
        blocks_per_stage: residual blocks in a stage, of two layers each.
        whitening: ZCA-whiten the images, which wants more images than pixels; "mirrored": fitted to
            mirror images, too, at half of the cost; or "patches": the same of patches, which does
            not want many images.
        crop_padding: random crops after so many zeros all round; 0 for none.
        flip: random mirror images.
        recipe: "fast": learned bandwidths of kernels that have one, the unexplained variance
            dropped, residual weights that are a mean of all blocks, inducing patches at the centres
            of clusters; "paper": all of it as published.
        skr_gamma_power: how γ grows with the inducing points: 0 takes the γ of 512 of them for any
            number, 1 is published.
        optimiser: "muon" makes the steps of mixing matrices orthogonal, "adam" is published.
        batch_size: images per step; "auto": 64.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from gramian import ConvDKMClassifier
        >>> images, y = load_digits().images[:100], load_digits().target[:100]  # 8 × 8 pixels
        >>> model = ConvDKMClassifier(num_inducing=(8, 8), max_epochs=2, random_state=0)
        >>> model.fit(images, y).predict_proba(images).shape, model.image_shape_
        ((100, 10), (1, 8, 8))
    """

    kind = "conv"
    betas = (0.8, 0.9)

    image_shape: tuple[int, int, int] | None = None
    num_inducing: tuple[int, ...] = (64, 64)
    strides: tuple[int, ...] = (2, 2)
    blocks_per_stage: int = 1
    whitening: Whitening = False
    crop_padding: int = 0
    flip: bool = False
    recipe: Literal["fast", "paper"] = "fast"
    optimiser: Optimiser = "muon"
    kernel: str = "normalized_gaussian"
    nu: float = 0.001
    skr_gamma_fraction: float | None = 0.25
    skr_jitter: float = 0.1
    skr_gamma_power: float = 0.0
    standardize: bool = True
    max_epochs: int = 40
    batch_size: int | Literal["auto"] = "auto"
    lr: float = 0.03
    schedule: Schedule = "one_cycle"
    precision: Precision = "auto"
    device: str = "auto"
    class_weight: dict[Any, float] | Literal["balanced"] | None = None
    calibrate: ScalingKind | None = None

    image_shape_: tuple[int, int, int] = field(init=False)
    pixel_range_: tuple[float, float] = field(init=False)

    def __sklearn_tags__(self) -> Tags:
        """Say that X is flat only with an ``image_shape``."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self.image_shape is not None
        tags.input_tags.three_d_array = True
        return tags

    def _plan(self, num_data: int) -> Plan:
        check_count("max_epochs", self.max_epochs)
        check_count("batch_size", self.batch_size, allow_auto=True)
        for count in self.num_inducing:
            check_count("num_inducing", count)
        batch = BATCH if self.batch_size == "auto" else int(self.batch_size)
        precision = "32-true" if self.precision == "auto" else self.precision
        widths = tuple(map(int, self.num_inducing))
        return Plan(widths, batch, int(self.max_epochs), precision)

    def _model_config(self, train: Dataset, plan: Plan) -> ConvDKMConfig:
        assert isinstance(plan.num_inducing, tuple)
        return ConvDKMConfig(
            image_shape=self.image_shape_,
            num_outputs=train.num_outputs,
            num_inducing=plan.num_inducing,
            strides=tuple(self.strides),
            blocks_per_stage=self.blocks_per_stage,
            whitening=self.whitening,
            kernel=self.kernel,
            nu=float(self.nu),
            skr=SKR(self.skr_gamma_fraction, float(self.skr_jitter), float(self.skr_gamma_power)),
            num_samples=self.num_samples,
            **self._recipe(),
        )

    def _recipe(self) -> dict[str, Any]:
        if self.recipe == "paper":
            return {name: IMAGE_MODEL[name] for name in ("mixing_start", "output_start")}
        has_bandwidth = KernelConfig(kernel=self.kernel).kernel_class().has_bandwidth
        return IMAGE_MODEL | {
            name: Bandwidth(**IMAGE_MODEL[name]) if has_bandwidth else Bandwidth()
            for name in ("bandwidth", "output_bandwidth")
        }

    def _optimiser(self) -> Optimiser:
        return self.optimiser

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("recipe", self.recipe, ("fast", "paper"))
        check_choice("optimiser", self.optimiser, get_args(Optimiser))

    def _augmentation(self) -> Augmentation:
        return Augmentation(self.crop_padding, self.flip)

    def _fit_scaler(self, train: Dataset) -> Normaliser:
        channels = train.x.shape[1]
        if self.standardize:
            return Normaliser.fit(train.x, train.weights)
        return Normaliser((0.0,) * channels, (1.0,) * channels)

    def _raw(self, X: Any, reset: bool) -> Tensor:
        """X, checked, as uint8 images [n, C, H, W]."""
        refuse_dates("X", X)
        images = self._images(X, reset)
        if reset:
            self.image_shape_ = tuple(map(int, images.shape[1:]))  # type: ignore[assignment]
            # validate_data does not count the features of arrays with more than two dimensions
            self.n_features_in_ = math.prod(self.image_shape_)
            self.pixel_range_ = (float(images.min()), float(images.max()))
            if images.dtype == np.uint8:
                self.pixel_range_ = (0.0, 255.0)
        elif images.shape[1:] != self.image_shape_:
            raise ValueError(
                f"images must be of shape {self.image_shape_} (channels, height, width) as in "
                f"training, got {images.shape[1:]}"
            )
        low, high = self.pixel_range_
        if images.dtype == np.uint8:
            if (low, high) != (0.0, 255.0):
                raise ValueError(
                    f"training images were numbers from {low:g} to {high:g}, these are uint8: "
                    "convert them to the same scale"
                )
            return tensor(images, torch.uint8)
        whole = (low, high) == (0.0, 255.0)
        if whole and not reset and images.max() <= 1 and (images % 1).any():
            raise ValueError(
                f"training images were numbers from {low:g} to {high:g}, these are at most "
                f"{images.max():g}: convert them to the same scale"
            )
        levels = (images.astype(np.float64) - low) * (255 / (high - low) if high > low else 1.0)
        return tensor(np.rint(levels.clip(0, 255)), torch.uint8)

    def _images(self, X: Any, reset: bool) -> Array:
        """X as an array [n, C, H, W] of uint8 or floating point."""
        ndim = np.ndim(X)
        if ndim <= 2:
            rows = validate_data(self, X, dtype=PIXELS, reset=reset)
            shape = self.image_shape if reset else self.image_shape_
            if shape is None:
                raise ValueError(
                    f"X is flat, of shape {rows.shape}: give images (n, C, H, W) or (n, H, W), or "
                    "set image_shape=(C, H, W)"
                )
            if math.prod(shape) != rows.shape[1]:
                raise ValueError(
                    f"image_shape={tuple(shape)} has {math.prod(shape)} values, but X has "
                    f"{rows.shape[1]} features"
                )
            return rows.reshape(-1, *shape)
        images = check_array(X, dtype=PIXELS, allow_nd=True)
        if ndim not in (3, 4):
            raise ValueError(f"images must be (n, C, H, W) or (n, H, W), got {images.shape}")
        images = images if ndim == 4 else images[:, None]
        if self.image_shape is None:
            refuse_channels_last(images.shape[1:])
        if reset and self.image_shape is not None and images.shape[1:] != tuple(self.image_shape):
            raise ValueError(
                f"image_shape={tuple(self.image_shape)}, but X holds images of {images.shape[1:]}"
            )
        return images

    def _facts(self) -> dict[str, Any]:
        shape, pixels = list(self.image_shape_), list(self.pixel_range_)
        return {**super()._facts(), "image_shape": shape, "pixel_range": pixels}

    def _restore(self, facts: dict[str, Any]) -> None:
        super()._restore(facts)
        self.image_shape_ = tuple(facts["image_shape"])
        self.pixel_range_ = tuple(facts["pixel_range"])
