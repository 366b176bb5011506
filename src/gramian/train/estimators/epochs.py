"""What the estimators with inducing points share: training in epochs, and in portions."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar, get_args

import numpy as np
import torch
from sklearn.utils import _safe_indexing
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, column_or_1d

from gramian.nn.contract import training
from gramian.nn.conv_dkm import ConvDKMConfig
from gramian.nn.dense_dkm import DenseDKMConfig
from gramian.nn.likelihoods import received
from gramian.train.config import Kind, TrainConfig
from gramian.train.data import Augmentation, Dataset, Scaler, hold_out
from gramian.train.data.targets import as_weights
from gramian.train.estimators.base import (
    Array,
    Estimator,
    check_choice,
    check_count,
    draw_seed,
)
from gramian.train.fit import train_
from gramian.train.natural import natural_step_
from gramian.train.objective import objective
from gramian.train.optimise import build_optimiser, set_learning_rate_
from gramian.train.predict.logit_scaling import ScalingKind
from gramian.train.predict.predictor import Predictor
from gramian.train.record.run_folder import Row
from gramian.train.runtime.devices import choose_device
from gramian.train.runtime.engine import Engine, dtype_of
from gramian.train.runtime.engine import Precision as FixedPrecision
from gramian.train.runtime.seeds import generator
from gramian.train.step import check_finite
from gramian.train.task import untrained

Schedule = Literal["steps", "cosine", "one_cycle", "constant"]
Precision = Literal["auto", "32-true", "64-true", "tf32"]
Optimiser = Literal["adam", "muon"]
MOMENTUM = 0.95  # of muon
Me = TypeVar("Me", bound="EpochEstimator")


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and the precision, which may depend on the number of training points."""

    num_inducing: int | tuple[int, ...]
    batch_size: int
    max_epochs: int
    precision: FixedPrecision

    @property
    def dtype(self) -> torch.dtype:
        """Of the model."""
        return dtype_of(self.precision)


@dataclass(frozen=True, slots=True)
class Stream:
    """Where a stream of portions stands: steps taken, data points seen (and what they weigh), those
    of a ``fit`` before it included, and the last optimiser's state by its name."""

    step: int = 0
    num_seen: int = 0
    weight_seen: float = 0.0
    weight_fitted: float = 0.0
    optimisers: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(kw_only=True, eq=False, repr=False)
class EpochEstimator(Estimator):
    """An estimator that is trained in epochs.

    A subclass says in ``_plan``, ``_model_config``, ``_fit_scaler`` and ``_augmentation`` what its
    parameters mean.
    """

    kind: ClassVar[Kind]
    natural: ClassVar[bool] = False
    betas: ClassVar[tuple[float, float]] = (0.9, 0.999)

    num_samples: int = 100
    lr: float = 0.1
    schedule: Schedule = "one_cycle"
    precision: Precision = "auto"
    device: str = "cpu"
    random_state: int | np.random.RandomState | None = None
    warm_start: bool = False
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    verbose: bool | int = False

    # ---- what a subclass says ----

    @abstractmethod
    def _plan(self, num_data: int) -> Plan:
        """Inducing points, batch size and epochs for so many training points."""

    @abstractmethod
    def _model_config(self, train: Dataset, plan: Plan) -> ConvDKMConfig | DenseDKMConfig:
        """The model for these data."""

    @abstractmethod
    def _fit_scaler(self, train: Dataset) -> Scaler:
        """The scaling of the inputs, fitted."""

    def _augmentation(self) -> Augmentation:
        """Random changes of training images."""
        return Augmentation(crop_padding=0, flip=False)

    def _optimiser(self) -> Optimiser:
        """What turns gradients into steps; tables have no mixing matrices."""
        return "adam"

    def _calibration(self) -> Literal["none", "temperature", "vector"]:
        """How a classifier's probabilities are calibrated."""
        return getattr(self, "calibrate", None) or "none"

    def _holds_out(self) -> bool:
        """Whether ``validation_fraction`` of the data is not trained on."""
        return self.early_stopping or self._calibration() != "none"

    # ---- training ----

    def fit(self: Me, X: Any, y: Any, sample_weight: Any = None) -> Me:
        """Train; with ``warm_start`` from the present weights.

        A row of weight 2 counts as two rows; one of weight 0 is not there.
        """
        going_on = bool(self.warm_start) and hasattr(self, "predictor_")
        if not going_on:
            self.__dict__.pop("predictor_", None)
        self._check_parameters()
        data = self._dataset(X, y, sample_weight, reset=not going_on)
        # the same seed splits the same rows in the same way: what was held out stays so
        seed = self.predictor_.seed if going_on else draw_seed(self.random_state)
        train, validation = data, None
        if self._holds_out():
            draw = generator(seed, "validation split")
            train, validation = hold_out(data, self.validation_fraction, draw)
        plan = self._plan(len(train))
        before = replace(self.predictor_, calibration=None) if going_on else None
        predictor = before or self._started(train, plan, seed)
        config = self._train_config(plan, predictor, seed + (self.n_iter_ if going_on else 0))
        self.predictor_, rows = train_(
            predictor, train, validation, config, verbose=bool(self.verbose)
        )
        self._stream = Stream(0, len(train), *2 * (float(train.total_weight),))
        self.history_ = [*self.history_, *rows] if going_on else rows
        self.n_iter_ = len(self.history_)
        return self

    def _train_config(self, plan: Plan, predictor: Predictor, seed: int) -> TrainConfig:
        """The parameters as settings of a run."""
        assert isinstance(predictor.config, ConvDKMConfig | DenseDKMConfig)
        augmentation = self._augmentation()
        return TrainConfig(
            kind=self.kind,
            validation_fraction=self.validation_fraction if self._holds_out() else 0.0,
            crop_padding=augmentation.crop_padding,
            flip=augmentation.flip,
            max_epochs=plan.max_epochs,
            batch_size=plan.batch_size,
            lr=float(self.lr),
            optimiser=self._optimiser(),
            betas=self.betas,
            momentum=MOMENTUM,
            schedule=self.schedule,
            natural=self.natural,
            seed=seed,
            precision=plan.precision,
            device=self.device,
            on_numerical_error="rollback",
            evaluate_every=1 if self.early_stopping else plan.max_epochs,
            patience=self.n_iter_no_change if self.early_stopping else None,
            calibrate=self._calibration(),
            conditions=False,
            model=predictor.config,
        )

    def partial_fit(self: Me, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Me:
        """One pass over a portion of the data, starting from the present weights.

        The first call chooses the inducing points and fits the scaling; a classifier's needs
        ``classes``, all that will ever come. The optimiser's memory is kept from call to call,
        until the next ``fit``. After a ``fit``, whose data count as seen, the learning rate is
        ``lr`` times the share of the portions in all data so far. What ``fit`` has calibrated is
        not calibrated any more.
        """
        first = not hasattr(self, "predictor_")
        if first and classes is None and hasattr(self, "predict_proba"):
            raise ValueError("the first call of partial_fit needs classes=, all of them")
        if getattr(self, "class_weight", None) == "balanced":
            raise ValueError(
                'class_weight="balanced" needs all data at once: give partial_fit a dictionary'
            )
        self._check_parameters()
        data = self._dataset(X, y, sample_weight, first, classes, is_portion=True)
        plan = self._plan(len(data))
        if first:
            seed = draw_seed(self.random_state)
            self.predictor_ = self._started(data, plan, seed)
            self.history_, self.n_iter_, self._stream = [], 0, Stream()
        self.predictor_ = replace(self.predictor_, calibration=None)
        engine = Engine(self.device, precision=plan.precision)
        with engine.arithmetic(), training(self.predictor_.trainable):
            row = self._pass_over(data, plan)
        self.n_iter_ += 1
        self.history_ = [*self.history_, {"epoch": self.n_iter_, **row}]
        return self

    def _pass_over(self, data: Dataset, plan: Plan) -> Row:
        """One pass over raw data; the KL is divided by the number of all points seen so far."""
        predictor, before, augmentation = self.predictor_, self._stream, self._augmentation()
        model, device = predictor.dkm, predictor.device
        num_seen, step, total = before.num_seen + len(data), before.step, 0.0
        weight_seen = before.weight_seen + data.total_weight
        w = data.weights
        w = None if w is None else w * (num_seen / weight_seen)  # 1 on average over all seen
        optimiser = build_optimiser(model, self._train_config(plan, predictor, predictor.seed))
        if self._optimiser() in before.optimisers:
            optimiser.load_state_dict(before.optimisers[self._optimiser()])
        set_learning_rate_(optimiser, float(self.lr) * (1 - before.weight_fitted / weight_seen))
        if self.natural:
            model.output.requires_grad_(False)
        order = torch.randperm(len(data), generator=generator(predictor.seed, "stream order", step))
        for indices in order.split(plan.batch_size):
            draw = generator(predictor.seed, "stream", step)
            inputs = predictor.scaler(augmentation(data.x[indices], draw), model.dtype).to(device)
            targets = received(data.y[indices], device)
            samples = model.draw_samples(1, draw)
            mine = None if w is None else w[indices].to(model.dtype).to(device)
            if self.natural:
                rho = max(0.1, len(indices) / num_seen) / 2
                wide = None if mine is None else mine.double()
                natural_step_(model, [(inputs, targets, wide)], weight_seen, rho, samples)
            result = model(inputs, model.draw_noise(draw))
            terms = objective(result, model.likelihood, targets, samples, weight_seen, mine)
            optimiser.zero_grad()
            terms.loss.backward()
            check_finite(model, terms)
            optimiser.step()
            total += terms.total.item() * len(indices)
            step += 1
        self._stream = Stream(
            step,
            num_seen,
            weight_seen,
            before.weight_fitted,
            {self._optimiser(): optimiser.state_dict()},
        )
        return {"objective": total / len(data)}

    def _started(self, train: Dataset, plan: Plan, seed: int) -> Predictor:
        """A model with start values."""
        dtype, scaler = plan.dtype, self._fit_scaler(train)
        predictor = untrained(self._model_config(train, plan), train, scaler, seed, dtype)
        draw = generator(seed, "start")
        x = scaler(self._augmentation()(train.x, draw), dtype)
        predictor.trainable.initialise_(x, draw, weights=train.weights)
        predictor.dkm.output.q_mean.detach().zero_()  # a random mean is no smooth function
        predictor.model.to(choose_device(self.device))
        return predictor

    def _dataset(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        reset: bool,
        classes: Any = None,
        is_portion: bool = False,
    ) -> Dataset:
        """X and y, checked, with the weights of the rows times those of their classes.

        Rows of weight 0 are left out before anything looks at them.
        """
        class_weight, weights = getattr(self, "class_weight", None), None
        sample_weight = None if sample_weight is None else as_weights(sample_weight)
        if y is not None and (sample_weight is not None or class_weight is not None):
            check_consistent_length(X, y)
            weights = _check_sample_weight(
                sample_weight, np.asarray(y), dtype=np.float64, ensure_non_negative=True
            )
            X, y, weights = without_zeros(X, y, weights)
            if class_weight is not None:
                known = classes if reset else self.classes_
                weights = weights * weights_of_classes(class_weight, y, weights, known)
                X, y, weights = without_zeros(X, y, weights)
        x = self._inputs(X, y, reset)
        targets, names = self._encode(y, reset, classes)
        found = None if weights is None else torch.from_numpy(weights)
        return Dataset(x, targets, names, found, is_portion)

    def _check_parameters(self) -> None:
        """Refuse what has no meaning, by the name of the parameter."""
        self._check_types()
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_choice("precision", self.precision, get_args(Precision))
        if getattr(self, "calibrate", None) is not None:
            check_choice("calibrate", getattr(self, "calibrate", None), get_args(ScalingKind))
        check_count("num_samples", self.num_samples)
        check_count("n_iter_no_change", self.n_iter_no_change)
        choose_device(self.device)

    def _facts(self) -> dict[str, Any]:
        stream = self._stream
        seen = [stream.num_seen, stream.weight_seen, stream.weight_fitted]
        return {**super()._facts(), "seen": seen}

    def _restore(self, facts: dict[str, Any]) -> None:
        super()._restore(facts)
        self._stream = Stream(0, *facts.get("seen", ()))  # files of old versions do not say


def without_zeros(X: Any, y: Any, weights: Array) -> tuple[Any, Any, Array]:
    """The rows whose weight is not 0."""
    there = weights.nonzero()[0]
    if len(there) == 0:
        raise ValueError("sample_weight: all weights are 0, there is nothing to learn from")
    if len(there) == len(weights):
        return X, y, weights
    return _safe_indexing(X, there), _safe_indexing(y, there), weights[there]


def weights_of_classes(class_weight: Any, y: Any, weights: Array, known: Any = None) -> Array:
    """The weight of each row's class.

    A dictionary may name any ``known`` class. "balanced" counts rows by their weights.
    """
    labels = column_or_1d(y)
    if class_weight == "balanced":
        _, numbers = np.unique(labels, return_inverse=True)
        totals = np.bincount(numbers, weights)
        return np.asarray((totals.mean() / totals)[numbers])
    found = np.unique(labels if known is None else np.concatenate([labels, known]))
    of_class = compute_class_weight(class_weight, classes=found, y=labels)
    return np.asarray(of_class[np.searchsorted(found, labels)])
