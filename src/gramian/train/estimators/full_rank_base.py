"""What the estimators without inducing points share: training on all data at once."""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any, Literal, get_args

import numpy as np
import torch
from rich.console import Console
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data
from torch import Tensor

from gramian.gram.divergence import Divergence
from gramian.nn.full_rank.full_rank_config import FullRankConfig, FullRankLikelihood
from gramian.nn.steps.inputs import Lengthscales
from gramian.nn.steps.kernels import Jitter
from gramian.train.cost.full_rank_cost import check_memory, estimate
from gramian.train.cost.machine import Machine
from gramian.train.estimators.base import PredictorEstimator
from gramian.train.estimators.tools import (
    UNSCALED,
    TargetScale,
    check_choice,
    check_count,
    draw_seed,
    fit_row_scaler,
    no_type_check,
    tensor,
)
from gramian.train.lbfgs import maximise_from_nngp_
from gramian.train.predict.full_rank_predictor import (
    FullRankPredictor,
    build_full_rank,
    scale_channels,
)
from gramian.train.runtime.engine import Engine
from gramian.train.runtime.seeds import generator

Precision = Literal["64-true", "32-true"]
AUTO_JITTER = {"64-true": 1e-6, "32-true": 1e-4}


class FullRankEstimator(PredictorEstimator):
    """An estimator around a ``FullRankModel``, trained by L-BFGS.

    What is no argument of a subclass's constructor is an attribute of the class.
    """

    predictor_type = FullRankPredictor
    nu: float = math.inf
    divergence: Divergence = "exact"
    likelihood: FullRankLikelihood = "gaussian"
    alpha: float = 0.01
    num_samples: int = 1

    predictor_: FullRankPredictor
    data_shape_: tuple[int, ...]
    converged_: bool
    objective_: float

    @no_type_check
    def __init__(
        self,
        *,
        num_layers: int = 1,
        kernel: str = "squared_exponential",
        lengthscales: Lengthscales = "per_feature",
        filter_size: int = 3,
        strides: tuple[int, ...] = (),
        kernel_jitter: float | Literal["auto"] = "auto",
        standardize: bool = True,
        max_iter: int = 200,
        tol: float = 1e-6,
        precision: Precision = "64-true",
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
        memory: int | None = None,
        verbose: bool | int = False,
    ) -> None:
        self.num_layers = num_layers
        self.kernel = kernel
        self.lengthscales = lengthscales
        self.filter_size = filter_size
        self.strides = strides
        self.kernel_jitter = kernel_jitter
        self.standardize = standardize
        self.max_iter = max_iter
        self.tol = tol
        self.precision = precision
        self.device = device
        self.random_state = random_state
        self.memory = memory
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        """Say that X may be images."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _raw(self, X: Any, reset: bool) -> Tensor:
        """X, checked, as rows [n, D] or images [n, C, H, W]."""
        flat = (X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim) <= 2
        # scikit-learn counts the features of flat data only
        data = validate_data(self, X, dtype=np.float64, reset=reset, allow_nd=True, ensure_2d=flat)
        shape = tuple(map(int, data.shape[1:]))
        if len(shape) not in (1, 3):
            raise ValueError(
                f"X must be rows (n, features) or images (n, C, H, W), got {data.shape}"
            )
        if reset:
            self.data_shape_, self.n_features_in_ = shape, math.prod(shape)
        elif shape != self.data_shape_:
            raise ValueError(
                f"each data point must be of shape {self.data_shape_} as in training, got {shape}"
            )
        return tensor(data, torch.float64)

    def _config(self, num_classes: int | None) -> FullRankConfig:
        """The settings of the model, checked."""
        check_count("max_iter", self.max_iter, allow_auto=False)
        check_count("num_samples", self.num_samples, allow_auto=False)
        check_choice("precision", self.precision, get_args(Precision))
        check_choice("lengthscales", self.lengthscales, get_args(Lengthscales))
        check_choice("divergence", self.divergence, get_args(Divergence))
        known = ("gaussian",) if num_classes is None else ("categorical", "dirichlet")
        check_choice("likelihood", self.likelihood, known)
        jitter = self.kernel_jitter
        jitter = AUTO_JITTER[self.precision] if jitter == "auto" else float(jitter)
        return FullRankConfig(
            kernel=self.kernel,
            kernel_jitter=Jitter(jitter, jitter),
            num_layers=int(self.num_layers),
            nu=float(self.nu),
            divergence=self.divergence,
            lengthscales=self.lengthscales,
            likelihood=self.likelihood,
            num_classes=num_classes,
            alpha=float(self.alpha),
            num_samples=int(self.num_samples),
            filter_size=int(self.filter_size),
            strides=tuple(map(int, self.strides)),
        )

    def _fit(
        self,
        x: Tensor,
        y: Tensor,
        class_names: tuple[str, ...] = (),
        target_scale: TargetScale = UNSCALED,
    ) -> None:
        """Train the best NNGP, and from there the model."""
        config = self._config(len(class_names) or None)
        seed = draw_seed(self.random_state)
        engine = Engine(self.device, precision=self.precision)
        scaler = fit_row_scaler(x.movedim(1, -1).flatten(0, -2), bool(self.standardize))
        inputs = scale_channels(scaler, x, engine.dtype).to(engine.device)
        if not class_names:
            shift, scale = (y.new_tensor(values) for values in target_scale)
            y = ((y - shift) / scale).to(engine.dtype)
        check_memory(config, inputs, len(class_names) or y.shape[1], self.memory)
        model = build_full_rank(inputs, y.to(engine.device), config)
        model.initialise_()
        noise = None
        if config.likelihood == "categorical":
            noise = model.draw_samples(generator(seed, "search")).to(engine.device)
        console = Console(file=sys.stderr, quiet=not self.verbose)
        space = (x.shape[2], x.shape[3]) if x.ndim == 4 else None
        if self.verbose:
            cost = estimate(config, len(x), space, engine.dtype, model.num_outputs)
            machine = Machine.measure(inputs[:, 0].numel(), engine.dtype, engine.device)
            console.print(
                f"{len(x):,} training points: about {cost.bytes / 1e9:.3g} GB, and "
                f"{machine.seconds(cost):.3g} s an iteration",
                highlight=False,
            )

        def show(iteration: int, objective: float) -> None:
            console.print(f"iteration {iteration}  objective {objective:.6f}", highlight=False)

        search = maximise_from_nngp_(
            model, noise, max_iter=int(self.max_iter), tol=float(self.tol), on_iteration=show
        )
        self.predictor_ = FullRankPredictor(model.eval(), scaler, class_names, target_scale, seed)
        self.history_ = [
            {"iteration": number, "objective": value}
            for number, value in enumerate(search.objectives[1:], start=1)
        ]
        self.n_iter_, self.converged_ = len(self.history_), search.converged
        self.objective_ = search.objectives[-1]
        if not search.converged:
            warnings.warn(
                f"no convergence after {self.n_iter_} iterations ({search.message}): "
                "raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _facts(self) -> dict[str, Any]:
        return {
            **super()._facts(),
            "data_shape": list(self.data_shape_),
            "converged": self.converged_,
            "objective": self.objective_,
        }

    def _restore(self, facts: dict[str, Any]) -> None:
        super()._restore(facts)
        self.data_shape_ = tuple(facts["data_shape"])
        self.converged_ = facts["converged"]
        self.objective_ = facts["objective"]
