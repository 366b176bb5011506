"""What a model is trained on: data, split, scaled and augmented, and the model that fits them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gramian.nn.dense_dkm import DenseDKMConfig
from gramian.nn.likelihoods import AUTO, find_likelihood
from gramian.train.config import ConfigError, ModelConfig, TrainConfig, build_model
from gramian.train.data import (
    CIFAR_NORMALISER,
    Augmentation,
    DataError,
    Dataset,
    Normaliser,
    RowScaler,
    Scaler,
    Splits,
    hold_out,
    load,
)
from gramian.train.predict.predictor import Predictor
from gramian.train.record.checkpoint import digest
from gramian.train.runtime.seeds import generator

log = logging.getLogger("gramian")

DESCRIPTIONS = {"classes": "classes", "real": "real targets", "counts": "counts"}


@dataclass(frozen=True, slots=True)
class Task:
    """Data sets with the scaling that was fitted to the training set."""

    train: Dataset
    validation: Dataset | None
    test: Dataset | None
    scaler: Scaler
    augmentation: Augmentation

    def inputs(self, raw: Tensor, draw: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Scaled inputs of a training batch; images are augmented first."""
        return self.scaler(self.augmentation(raw, draw) if raw.ndim == 4 else raw, dtype)

    def digest(self) -> str:
        """SHA-256 over all data: what a result depends on besides its settings."""
        sets = (self.train, self.validation, self.test)
        return digest([data and _parts(data) for data in sets])


def load_task(config: TrainConfig, splits: Splits | None = None) -> Task:
    """Read the data that a configuration names (unless ``splits`` has them), and split them.

    The split depends on its own seed only.
    """
    splits = splits or load(config.data, config.data_dir)
    train, validation = training_split(splits.train, config)
    augmentation = Augmentation(config.crop_padding, config.flip)
    return Task(train, validation, splits.test, fit_scaler(config.data, train), augmentation)


def training_split(train: Dataset, config: TrainConfig) -> tuple[Dataset, Dataset | None]:
    """What to train on, and what is held out, as the settings say."""
    validation = None
    if config.validation_fraction:
        draw = generator(config.split_seed, "validation split")
        train, validation = hold_out(train, config.validation_fraction, draw)
    if config.train_size is not None:
        if not 2 <= config.train_size <= len(train):
            raise ConfigError(
                f"train_size must be between 2 and the {len(train)} training points, "
                f"got {config.train_size}"
            )
        order = torch.randperm(len(train), generator=generator(config.split_seed, "train size"))
        train = train.subset(order[: config.train_size])
    if train.x.ndim != 4 and (config.crop_padding or config.flip):
        raise ConfigError("crop_padding and flip are for images, but the data are rows")
    return train, validation


def _parts(data: Dataset) -> list[Any]:
    """What a result depends on; weights only if there are any, as older digests have it."""
    return [data.x, data.y, data.class_names] + ([] if data.weights is None else [data.weights])


def fit_scaler(name: str, train: Dataset) -> Scaler:
    """The published constants for CIFAR; otherwise the training set's mean and deviation."""
    if name in ("cifar10", "cifar100"):
        return CIFAR_NORMALISER
    return (Normaliser if train.x.dtype == torch.uint8 else RowScaler).fit(train.x, train.weights)


def fit_model_config(config: ModelConfig, train: Dataset) -> ModelConfig:
    """The model configuration with the sizes and the likelihood that the data dictate."""
    likelihood = AUTO[train.targets] if config.likelihood == "auto" else config.likelihood
    wanted = find_likelihood(likelihood).targets
    if (wanted == "classes") != (train.targets == "classes"):
        raise ConfigError(
            f"the likelihood {likelihood} is for {wanted}, but the data have "
            f"{DESCRIPTIONS[train.targets]}: choose likelihood auto, or save other targets"
        )
    common: dict[str, Any] = {"likelihood": likelihood, "num_outputs": train.num_outputs}
    if isinstance(config, DenseDKMConfig):
        if train.images:
            raise ConfigError("the data are images, not rows: use kind conv")
        P = min(config.num_inducing, len(train))
        if config.num_inducing > P:
            log.info("%d inducing points, as many as there are training rows", P)
        return replace(config, num_features=train.x.shape[1], num_inducing=P, **common)
    if not train.images:
        raise ConfigError("the data are rows, not images: use kind dense")
    channels, height, width = train.x.shape[1:]
    if min(height, width) < 3:
        raise DataError(
            f"images of {width}×{height} pixels are too small, they must have 3×3 or more: enlarge "
            "them, or save them as rows (floating point of shape [N, D]) for a dense model"
        )
    return replace(config, image_shape=(channels, height, width), **common)


def untrained(
    config: ModelConfig,
    train: Dataset,
    scaler: Scaler,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Predictor:
    """A model that fits the data, without start values; only its targets' scale is known."""
    config = fit_model_config(config, train)
    model = build_model(config, dtype)
    try:
        model.likelihood.fit_targets_(train.y, train.weights)
    except (TypeError, ValueError) as error:
        raise DataError(f"the likelihood {config.likelihood} cannot have these: {error}") from error
    return Predictor(model, config, scaler, train.class_names, seed)
