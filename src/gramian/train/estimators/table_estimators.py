"""Deep kernel machines as scikit-learn estimators for tables."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from sklearn.utils.validation import validate_data
from torch import Tensor

from gramian.gram.skr import SKR
from gramian.nn.dense_dkm import DenseDKMConfig
from gramian.nn.likelihoods import find_likelihood
from gramian.nn.steps.inputs import Lengthscales
from gramian.train.data import Dataset, RowScaler
from gramian.train.defaults import TABLES, TableSizes, TableStart
from gramian.train.estimators.base import check_count, refuse_dates, tensor
from gramian.train.estimators.epochs import EpochEstimator, Plan
from gramian.train.estimators.kinds import Classifier, Regressor
from gramian.train.predict.logit_scaling import ScalingKind


@dataclass(kw_only=True, eq=False, repr=False)
class TableEstimator(EpochEstimator):
    """Parameters and model of the estimators for tables."""

    kind = "dense"
    natural = True
    defaults: ClassVar[TableStart]

    num_inducing: int | Literal["auto"] = "auto"
    num_layers: int | Literal["auto"] = "auto"
    kernel: str = "squared_exponential"
    lengthscales: Lengthscales = "per_feature"
    nu: float | Literal["auto"] = "auto"
    skr_gamma_fraction: float | None = None
    skr_jitter: float = 0.0
    standardize: bool = True
    max_epochs: int | Literal["auto"] = "auto"
    batch_size: int | Literal["auto"] = "auto"

    def _sizes(self, num_data: int) -> TableSizes:
        """The parameters, and what suits so many rows where they are "auto"."""
        batch = None if self.batch_size == "auto" else self.batch_size
        sizes = self.defaults.sizes(num_data, batch)
        mine = {field.name: getattr(self, field.name) for field in fields(sizes)}
        given = {name: value for name, value in mine.items() if value != "auto"}
        if "nu" in given:
            given["nu"] = float(given["nu"])
        return replace(sizes, **given)

    def _plan(self, num_data: int) -> Plan:
        for name in ("num_inducing", "max_epochs", "batch_size"):
            check_count(name, getattr(self, name), allow_auto=True)
        check_count("num_layers", self.num_layers, allow_auto=True, least=0)
        sizes = self._sizes(num_data)
        num_inducing = min(sizes.num_inducing, num_data)
        return Plan(num_inducing, sizes.batch_size, sizes.max_epochs, sizes.precision)

    def _model_config(self, train: Dataset, plan: Plan) -> DenseDKMConfig:
        assert isinstance(plan.num_inducing, int)
        sizes = self._sizes(len(train))
        return DenseDKMConfig(
            num_features=train.x.shape[1],
            num_outputs=train.num_outputs,
            num_inducing=plan.num_inducing,
            num_layers=sizes.num_layers,
            lengthscales=self.lengthscales,
            likelihood=getattr(self, "likelihood", "categorical"),
            shared_noise=bool(getattr(self, "shared_noise", False)),
            kernel=self.kernel,
            nu=sizes.nu,
            weight_var=self.defaults.weight_var,
            bias_var=self.defaults.bias_var,
            divergence="exact",
            skr=SKR(self.skr_gamma_fraction, float(self.skr_jitter)),
            num_samples=self.num_samples,
            output_start="kernel",
        )

    def _fit_scaler(self, train: Dataset) -> RowScaler:
        if self.standardize:
            return RowScaler.fit(train.x, train.weights)
        return RowScaler.none(train.x.shape[1])

    def _raw(self, X: Any, reset: bool) -> Tensor:
        """X, checked, as a tensor."""
        refuse_dates("X", X)
        rows = validate_data(self, X, dtype=np.float64, reset=reset)
        return tensor(rows, torch.float64)


@dataclass(kw_only=True, eq=False, repr=False)
class DKMClassifier(Classifier, TableEstimator):
    """A deep kernel machine for the classes of table rows.

    A kernel on standardised features with learned lengthscales, ``num_layers`` Gram layers, and a
    Gaussian process with ``num_inducing`` inducing points and a softmax on top. q of that Gaussian
    process follows natural gradients, everything else Adam.

        p(y | x) = E_q[softmax(f(x))_y],  q(f(x)) = N(mean, var)

    X are rows (n, features), y any labels (n,).

    Args:
        num_inducing: inducing points, at most as many as training rows; "auto": 100 for up to
            2,048 rows, then growing with the root of their number up to 256.
        num_layers: Gram layers; 0 is a sparse variational Gaussian process. "auto": 1 for up to
            2,048 rows, 2 for more.
        kernel: a name in ``gramian.KERNELS``.
        lengthscales: learned input scales: "none", "one", or "per_feature".
        nu: pull of the Gram matrices towards the kernel; with infinity the kernel is fixed.
            "auto": 10, and falling as 1/rows from 1,500 rows on (4,500 with real targets).
        skr_gamma_fraction: Wishart noise on the Gram matrices in training, γ = ⌈fraction · P⌉;
            None for none.
        skr_jitter: added to the diagonal of the Gram matrices.
        standardize: scale each feature to mean 0 and deviation 1 first.
        max_epochs: passes over the data; "auto": 100 steps (150 for real targets), or 500 with more
            than 2,048 rows, and at least 10 epochs.
        batch_size: rows per step; "auto": all of up to 2048 rows, otherwise 512.
        lr: learning rate of Adam, at the peak of one_cycle.
        schedule: "one_cycle", "cosine", "steps" or "constant".
        num_samples: Monte-Carlo samples of the softmax.
        class_weight: weights of the classes, as a dictionary or "balanced"; None for 1.
        calibrate: "temperature" or "vector": scale the logits to suit rows that are held out;
            None: probabilities as trained.
        precision: "64-true" or "32-true" (or "tf32" on CUDA). "auto": for tables 64-true up to
            20,000 rows and 32-true beyond, for images 32-true.
        device: "cpu", "cuda", "mps" or "auto".
        random_state: seed of everything random.
        warm_start: a second ``fit`` goes on from the weights of the first.
        early_stopping: hold out rows, stop when their log-likelihood does not improve, and keep
            the best model.
        validation_fraction: share of rows held out for early stopping and calibration.
        n_iter_no_change: epochs without improvement before an early stop.
        verbose: show progress on standard error.

    Attributes:
        classes_: the classes, sorted.
        model_: the trained torch module.
        predictor_: the model with its scaling, ``gramian.Predictor``.
        history_: metrics per epoch.
        n_iter_: epochs trained, over all warm starts.
        n_features_in_: features.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from gramian import DKMClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = DKMClassifier(num_inducing=10, max_epochs=10, random_state=0).fit(X, y)
        >>> model.predict_proba(X).shape, model.score(X, y) > 0.9
        ((150, 3), True)
    """

    defaults = TABLES["classes"]

    class_weight: dict[Any, float] | Literal["balanced"] | None = None
    calibrate: ScalingKind | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class DKMRegressor(Regressor, TableEstimator):
    """A deep kernel machine for one or more real targets, or counts, of table rows.

    Further arguments are those of ``DKMClassifier``. Targets are standardised for training; several
    targets share the kernel; each has a noise of its own.

        y = f(x) + σ ε,  q(f(x)) = N(mean, var);  of counts y ~ Poisson(exp f(x))

    X are rows (n, features), y is (n,) or (n, targets).

    Args:
        likelihood: "gaussian"; "student_t", for targets with outliers; "poisson", for counts; or a
            custom ``gramian.Likelihood`` as "module.Class".
        shared_noise: learn one noise for all targets, in standardised units.

    Example:
        >>> import numpy as np
        >>> from gramian import DKMRegressor
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> model = DKMRegressor(max_epochs=10, random_state=0).fit(x, np.sin(3 * x[:, 0]))
        >>> mean, std = model.predict([[0.5], [5.0]], return_std=True)
        >>> mean.shape, bool(std[0] < std[1])  # more is unknown far away
        ((2,), True)
    """

    defaults = TABLES["real"]

    likelihood: str = "gaussian"
    shared_noise: bool = False

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if find_likelihood(self.likelihood).targets == "classes":
            raise ValueError(f"likelihood={self.likelihood!r} is for classes: use DKMClassifier")
