"""What the estimators with inducing points share: training in epochs, and in portions."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from gramian.train.config import Kind, ModelConfig, TrainConfig, build_model
from gramian.train.data import Augmentation, Dataset, Scaler, hold_out
from gramian.train.estimators.base import PredictorEstimator
from gramian.train.estimators.streaming import Stream, stream_
from gramian.train.estimators.tools import UNSCALED, TargetScale, draw_seed, no_type_check
from gramian.train.natural import NaturalTrainer
from gramian.train.predict.predictor import Predictor
from gramian.train.runtime.engine import Engine
from gramian.train.runtime.seeds import generator
from gramian.train.task import Task
from gramian.train.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes that depend on the number of training points."""

    num_inducing: int | tuple[int, ...]
    batch_size: int
    max_epochs: int


class DKMEstimator(PredictorEstimator):
    """An estimator around a ``Predictor`` and a ``Trainer``.

    A subclass has the constructor arguments that are read here, says in ``_plan``,
    ``_model_config`` and ``_augmentation`` what they mean, and turns arrays into data sets.
    """

    kind: ClassVar[Kind]
    trainer: ClassVar[type[Trainer]] = Trainer
    betas: ClassVar[tuple[float, float]] = (0.9, 0.999)

    predictor_: Predictor
    _stream: Stream | None

    @no_type_check
    def __init__(
        self,
        *,
        lr: float,
        schedule: Literal["steps", "cosine", "one_cycle", "constant"],
        precision: Literal["32-true", "64-true", "tf32"],
        device: str,
        random_state: int | np.random.RandomState | None,
        warm_start: bool,
        early_stopping: bool,
        validation_fraction: float,
        n_iter_no_change: int,
        verbose: bool | int,
    ) -> None:
        self.lr = lr
        self.schedule = schedule
        self.precision = precision
        self.device = device
        self.random_state = random_state
        self.warm_start = warm_start
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.verbose = verbose

    # ---- what a subclass says ----

    @abstractmethod
    def _plan(self, num_data: int) -> Plan:
        """Inducing points, batch size and epochs for so many training points."""

    @abstractmethod
    def _model_config(self, x: Tensor, num_outputs: int, plan: Plan) -> ModelConfig:
        """The model for these data."""

    @abstractmethod
    def _fit_scaler(self, x: Tensor) -> Scaler:
        """The scaling of the inputs, fitted."""

    def _augmentation(self) -> Augmentation:
        """Random changes of training images."""
        return Augmentation(crop_padding=0, flip=False)

    # ---- training ----

    def _continues(self) -> bool:
        return bool(self.warm_start) and hasattr(self, "predictor_")

    def _fit(
        self,
        x: Tensor,
        y: Tensor,
        class_names: tuple[str, ...] = (),
        target_scale: TargetScale = UNSCALED,
    ) -> None:
        """Train to the end, from fresh or present weights."""
        data = Dataset(x, y, class_names)
        going_on = self._continues()
        seed = draw_seed(self.random_state)
        train, validation = data, None
        if self.early_stopping:
            draw = generator(seed, "validation split")
            train, validation = hold_out(data, self.validation_fraction, draw)
        plan = self._plan(len(train))
        if going_on:
            predictor = self.predictor_
        else:
            num_outputs = len(class_names) or y.shape[1]
            predictor = self._new_predictor(
                train.x, num_outputs, plan, class_names, target_scale, seed
            )
        config = TrainConfig(
            kind=self.kind,
            validation_fraction=self.validation_fraction if self.early_stopping else 0.0,
            max_epochs=plan.max_epochs,
            batch_size=plan.batch_size,
            lr=float(self.lr),
            betas=self.betas,
            schedule=self.schedule,
            seed=seed + (self.n_iter_ if going_on else 0),
            precision=self.precision,
            device=self.device,
            on_numerical_error="rollback",
            evaluate_every=1 if self.early_stopping else plan.max_epochs,
            patience=self.n_iter_no_change if self.early_stopping else None,
            conditions=False,
            model=predictor.config,
        )
        engine = Engine(self.device, precision=self.precision)
        task = Task(train, validation, None, predictor.scaler, self._augmentation())
        rows = self.trainer(predictor, task, config, engine, quiet=not self.verbose).fit()
        self.predictor_, self._stream = predictor, None
        self.history_ = [*self.history_, *rows] if going_on else rows
        self.n_iter_ = len(self.history_)

    def _partial_fit(
        self,
        x: Tensor,
        y: Tensor,
        class_names: tuple[str, ...] = (),
        target_scale: TargetScale = UNSCALED,
    ) -> None:
        """One pass over a portion of the data; y may hold some of the classes only."""
        plan = self._plan(len(x))
        if not hasattr(self, "predictor_"):
            seed = draw_seed(self.random_state)
            num_outputs = len(class_names) or y.shape[1]
            self.predictor_ = self._new_predictor(
                x, num_outputs, plan, class_names, target_scale, seed
            )
            self.history_, self.n_iter_, self._stream = [], 0, None
        self._stream, row = stream_(
            self.predictor_,
            x,
            y,
            self._stream or Stream(),
            augmentation=self._augmentation(),
            batch_size=plan.batch_size,
            lr=float(self.lr),
            betas=self.betas,
            natural=issubclass(self.trainer, NaturalTrainer),
        )
        self.n_iter_ += 1
        self.history_ = [*self.history_, {"epoch": self.n_iter_, **row}]

    def _new_predictor(
        self,
        x: Tensor,
        num_outputs: int,
        plan: Plan,
        class_names: tuple[str, ...],
        target_scale: TargetScale,
        seed: int,
    ) -> Predictor:
        """A model with start values."""
        dtype = torch.float64 if self.precision == "64-true" else torch.float32
        config, scaler = self._model_config(x, num_outputs, plan), self._fit_scaler(x)
        predictor = Predictor(
            build_model(config).to(dtype), config, scaler, class_names, target_scale, seed
        )
        draw = generator(seed, "start")
        predictor.model.initialise_(scaler(self._augmentation()(x, draw), dtype), draw)
        predictor.dkm.output.q_mean.detach().zero_()  # a random mean is no smooth function
        return predictor

    def _restore(self, facts: dict[str, Any]) -> None:
        super()._restore(facts)
        self._stream = None
