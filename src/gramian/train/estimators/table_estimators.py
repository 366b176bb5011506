"""Deep kernel machines as scikit-learn estimators, for tables and for images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from sklearn.utils.validation import validate_data
from torch import Tensor

from gramian.gram.skr import SKR
from gramian.nn.dense_dkm import DenseDKMConfig
from gramian.nn.steps.inputs import Lengthscales
from gramian.train.data import RowScaler
from gramian.train.estimators.classifier import PortionClassifier
from gramian.train.estimators.epoch_estimator import DKMEstimator, Plan
from gramian.train.estimators.regressor import ProbabilisticRegressor
from gramian.train.estimators.tools import (
    check_count,
    epochs_for,
    fit_row_scaler,
    fit_target_scale,
    no_type_check,
    tensor,
)
from gramian.train.natural import NaturalTrainer

Me = TypeVar("Me", bound="DKMRegressor")
AUTO_INDUCING, AUTO_BATCH, FULL_BATCH = 100, 512, 2048


@dataclass(frozen=True)
class Defaults:
    """What "auto" means, and where the kernels' variances start; chosen on other data."""

    nu: float
    weight_var: float
    bias_var: float
    steps: int


DEFAULTS = {
    "categorical": Defaults(nu=10.0, weight_var=2.0, bias_var=1.0, steps=100),
    "gaussian": Defaults(nu=30.0, weight_var=1.0, bias_var=0.1, steps=150),
}


class DenseEstimator(DKMEstimator):
    """Constructor and model of the estimators for tables."""

    kind = "dense"
    trainer = NaturalTrainer
    likelihood: Literal["categorical", "gaussian"]

    @no_type_check
    def __init__(
        self,
        *,
        num_inducing: int | Literal["auto"] = "auto",
        num_layers: int = 1,
        kernel: str = "squared_exponential",
        lengthscales: Lengthscales = "per_feature",
        nu: float | Literal["auto"] = "auto",
        skr_gamma_fraction: float | None = None,
        skr_jitter: float = 0.0,
        standardize: bool = True,
        max_epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        lr: float = 0.1,
        schedule: Literal["steps", "cosine", "one_cycle", "constant"] = "one_cycle",
        num_samples: int = 100,
        precision: Literal["32-true", "64-true", "tf32"] = "64-true",
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
        warm_start: bool = False,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        verbose: bool | int = False,
    ) -> None:
        super().__init__(
            lr=lr,
            schedule=schedule,
            precision=precision,
            device=device,
            random_state=random_state,
            warm_start=warm_start,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            verbose=verbose,
        )
        self.num_inducing = num_inducing
        self.num_layers = num_layers
        self.kernel = kernel
        self.lengthscales = lengthscales
        self.nu = nu
        self.skr_gamma_fraction = skr_gamma_fraction
        self.skr_jitter = skr_jitter
        self.standardize = standardize
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.num_samples = num_samples

    def _plan(self, num_data: int) -> Plan:
        for name in ("num_inducing", "max_epochs", "batch_size"):
            check_count(name, getattr(self, name))
        P = AUTO_INDUCING if self.num_inducing == "auto" else self.num_inducing
        batch = self.batch_size
        if batch == "auto":
            batch = num_data if num_data <= FULL_BATCH else AUTO_BATCH
        epochs = self.max_epochs
        if epochs == "auto":
            epochs = epochs_for(DEFAULTS[self.likelihood].steps, num_data, batch, at_least=10)
        return Plan(min(int(P), num_data), int(batch), int(epochs))

    def _model_config(self, x: Tensor, num_outputs: int, plan: Plan) -> DenseDKMConfig:
        assert isinstance(plan.num_inducing, int)
        defaults = DEFAULTS[self.likelihood]
        return DenseDKMConfig(
            num_features=x.shape[1],
            num_outputs=num_outputs,
            num_inducing=plan.num_inducing,
            num_layers=self.num_layers,
            lengthscales=self.lengthscales,
            likelihood=self.likelihood,
            kernel=self.kernel,
            nu=defaults.nu if self.nu == "auto" else float(self.nu),
            weight_var=defaults.weight_var,
            bias_var=defaults.bias_var,
            divergence="exact",
            skr=SKR(self.skr_gamma_fraction, float(self.skr_jitter)),
            num_samples=self.num_samples,
            output_start="kernel",
        )

    def _fit_scaler(self, x: Tensor) -> RowScaler:
        return fit_row_scaler(x, self.standardize)

    def _raw(self, X: Any, reset: bool) -> Tensor:
        """X, checked, as a tensor."""
        rows = validate_data(self, X, dtype=np.float64, reset=reset)
        return tensor(rows, torch.float64)


class DKMClassifier(DenseEstimator, PortionClassifier):
    """A deep kernel machine for the classes of table rows.

    A kernel on standardised features with learned lengthscales, ``num_layers`` Gram layers, and a
    Gaussian process with ``num_inducing`` inducing points and a softmax on top. q of that Gaussian
    process follows natural gradients, everything else Adam.

    Args:
        num_inducing: inducing points, at most as many as training rows; "auto": 100.
        num_layers: Gram layers; 0 is a sparse variational Gaussian process.
        kernel: a name in ``gramian.KERNELS``.
        lengthscales: learned input scales: "none", "one", or "per_feature".
        nu: pull of the Gram matrices towards the kernel; with infinity the kernel is fixed.
            "auto": 10 for classes, 30 for real targets.
        skr_gamma_fraction: Wishart noise on the Gram matrices in training, γ = ⌈fraction · P⌉;
            None for none.
        skr_jitter: added to the diagonal of the Gram matrices.
        standardize: scale each feature to mean 0 and deviation 1 first.
        max_epochs: passes over the data; "auto": 100 steps (150 for real targets), and at
            least 10 epochs.
        batch_size: rows a step; "auto": all of up to 2048 rows, otherwise 512.
        lr: learning rate of Adam, at the peak of one_cycle.
        schedule: "one_cycle", "cosine", "steps" or "constant".
        num_samples: Monte-Carlo samples of the softmax.
        precision: "64-true" or "32-true" (or "tf32" on CUDA).
        device: "cpu", "cuda", "mps" or "auto".
        random_state: seed of everything random.
        warm_start: a second ``fit`` goes on from the weights of the first.
        early_stopping: hold out rows, stop when their log-likelihood does not improve, and keep
            the best model.
        validation_fraction: share of rows held out for early stopping.
        n_iter_no_change: epochs without improvement before an early stop.
        verbose: show progress on standard error.

    Attributes:
        classes_: the classes, sorted.
        model_: the trained torch module.
        predictor_: the model with its scaling, ``gramian.Predictor``.
        history_: a row of figures an epoch.
        n_iter_: epochs trained, over all warm starts.
        n_features_in_: features.
    """

    likelihood = "categorical"


class DKMRegressor(ProbabilisticRegressor, DenseEstimator):
    """A deep kernel machine for one or more real targets of table rows.

    The arguments are those of ``DKMClassifier``. Targets are standardised for training; several
    targets share the kernel and, in standardised units, the noise. There is no ``return_cov``: the
    model keeps the diagonal of the data's Gram matrix only.
    """

    likelihood = "gaussian"

    def partial_fit(self: Me, X: Any, y: Any) -> Me:
        """One pass over a portion of the data, starting from the present weights.

        The first call chooses the inducing points and fits the scaling. Adam's memory is kept from
        call to call, until the next ``fit``.
        """
        first = not hasattr(self, "predictor_")
        x, targets = self._targets(X, y, reset=first)
        scale = fit_target_scale(targets.numpy()) if first else self.predictor_.target_scale
        self._partial_fit(x, targets, target_scale=scale)
        return self
