"""Deep kernel machines without inducing points, and NNGPs, as scikit-learn estimators."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data
from torch import Tensor

from gramian.gram.divergence import Divergence
from gramian.nn.full_rank.full_rank_config import FullRankConfig
from gramian.nn.steps.inputs import Lengthscales
from gramian.nn.steps.kernels import Jitter
from gramian.train.data import Dataset
from gramian.train.estimators.base import (
    Estimator,
    check_choice,
    check_count,
    draw_seed,
    refuse_channels_last,
    refuse_dates,
    tensor,
)
from gramian.train.estimators.kinds import Classifier, Regressor
from gramian.train.fit import fit_full_rank
from gramian.train.runtime.devices import choose_device

Precision = Literal["64-true", "32-true"]
AUTO_JITTER = {"64-true": 1e-6, "32-true": 1e-4}
NU = 1000.0
"""Pull of the Gram matrices towards the kernel: between those that validation chose on UCI data."""
Me = TypeVar("Me", bound="FullRankEstimator")


@dataclass(kw_only=True, eq=False, repr=False)
class FullRankEstimator(Estimator):
    """An estimator around a ``FullRankModel``, trained by L-BFGS on all data at once.

    What is no parameter of a subclass (ν, the likelihood, …) has the value of an NNGP.
    """

    num_layers: int = 1
    kernel: str = "squared_exponential"
    lengthscales: Lengthscales = "per_feature"
    filter_size: int = 3
    strides: tuple[int, ...] = ()
    kernel_jitter: float | Literal["auto"] = "auto"
    standardize: bool = True
    max_iter: int = 200
    tol: float = 1e-6
    precision: Precision = "64-true"
    device: str = "cpu"
    random_state: int | np.random.RandomState | None = None
    memory: int | None = None
    verbose: bool | int = False

    data_shape_: tuple[int, ...] = field(init=False)
    converged_: bool = field(init=False)
    objective_: float = field(init=False)

    def __sklearn_tags__(self) -> Tags:
        """Say that X may be images."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def fit(self: Me, X: Any, y: Any) -> Me:
        """Train the best NNGP, and from there the model."""
        self._check_types()
        x = self._inputs(X, y, reset=True)
        data = Dataset(x, *self._encode(y, reset=True))
        self.predictor_, search = fit_full_rank(
            self._config(data),
            data,
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            seed=draw_seed(self.random_state),
            device=self.device,
            precision=self.precision,
            memory=self.memory,
            standardise=bool(self.standardize),
            verbose=bool(self.verbose),
        )
        self.history_ = [
            {"iteration": number, "objective": value}
            for number, value in enumerate(search.objectives[1:], start=1)
        ]
        self.n_iter_, self.converged_ = len(self.history_), search.converged
        self.objective_ = search.objectives[-1]
        if not search.converged:
            warnings.warn(
                f"no convergence after {self.n_iter_} iterations ({search.message}): "
                f"{search.remedy}",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _raw(self, X: Any, reset: bool) -> Tensor:
        """X, checked, as rows [n, D] or images [n, C, H, W]."""
        refuse_dates("X", X)
        flat = (X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim) <= 2
        # scikit-learn counts the features of flat data only
        data = validate_data(self, X, dtype=np.float64, reset=reset, allow_nd=True, ensure_2d=flat)
        shape = tuple(map(int, data.shape[1:]))
        if len(shape) not in (1, 3):
            raise ValueError(
                f"X must be rows (n, features) or images (n, C, H, W), got {data.shape}"
            )
        if len(shape) == 3:
            refuse_channels_last(shape)
        if reset:
            self.data_shape_, self.n_features_in_ = shape, math.prod(shape)
        elif shape != self.data_shape_:
            raise ValueError(
                f"each data point must be of shape {self.data_shape_} as in training, got {shape}"
            )
        return tensor(data, torch.float64)

    def _config(self, data: Dataset) -> FullRankConfig:
        """The settings of the model, checked."""
        check_count("num_samples", getattr(self, "num_samples", 1))
        own: dict[str, Any] = {
            name: kind(getattr(self, name)) for name, kind in OWN.items() if hasattr(self, name)
        }
        classes = data.targets == "classes"
        likelihood = own.get("likelihood", "dirichlet" if classes else "gaussian")
        check_count("max_iter", self.max_iter)
        check_choice("precision", self.precision, get_args(Precision))
        check_choice("lengthscales", self.lengthscales, get_args(Lengthscales))
        check_choice("divergence", own.get("divergence", "exact"), get_args(Divergence))
        check_choice(
            "likelihood", likelihood, ("categorical", "dirichlet") if classes else ("gaussian",)
        )
        choose_device(self.device)
        jitter = self.kernel_jitter
        jitter = AUTO_JITTER[self.precision] if jitter == "auto" else float(jitter)
        return FullRankConfig(
            kernel=self.kernel,
            kernel_jitter=Jitter(jitter, jitter),
            num_layers=int(self.num_layers),
            lengthscales=self.lengthscales,
            num_classes=len(data.class_names) or None,
            filter_size=int(self.filter_size),
            strides=tuple(map(int, self.strides)),
            **{"nu": math.inf, **own, "likelihood": likelihood},
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


OWN = {
    "nu": float,
    "divergence": str,
    "likelihood": str,
    "alpha": float,
    "num_samples": int,
    "shared_noise": bool,
}
"""Parameters that only some of these estimators have; the others have a configuration's default."""


@dataclass(kw_only=True, eq=False, repr=False)
class FullRankDKMRegressor(Regressor, FullRankEstimator):
    """A deep kernel machine without inducing points, for real targets of rows or images.

    A kernel on standardised features, ``num_layers`` Gram layers over all training points, and a
    Gaussian process on top, in closed form. Time grows with the cube of the number of training
    points (of images: of all their pixels), memory with its square; a model that does not fit in
    memory is refused. The search starts at the best NNGP.

    X are rows (n, features) or images (n, C, H, W), for which a layer also has a convolution. The
    training data are part of the model, and of what ``save_pretrained`` writes.

        maximised: Σ_c log N(y_c; 0, K(G^L) + σ²_c I) − Σ_ℓ ν D(N(0, G^ℓ) ‖ N(0, K(G^{ℓ−1})))

    Args:
        num_layers: Gram layers; 0 is a Gaussian process.
        kernel: a name in ``gramian.KERNELS``, or "linear".
        lengthscales: learned scales of features (channels): "none", "one", or "per_feature".
        nu: pull of the Gram matrices towards the kernel; with infinity the kernel is fixed.
        divergence: "exact", "taylor" or "taylor_symmetric".
        shared_noise: learn one noise for all targets, in standardised units: they then share the
            large factorisation, too.
        filter_size: of the convolutions, odd. Images only.
        strides: of the convolutions, one per layer; () for 1 in all layers. Images only.
        kernel_jitter: inflation of the kernels' diagonals, relative and absolute; "auto": 1e-6,
            and 1e-4 in "32-true".
        standardize: scale each feature (channel) to mean 0 and deviation 1 first.
        max_iter: most iterations of each of the two searches, the NNGP's and the model's.
        tol: stop when an iteration raises the objective by less.
        precision: "64-true" or "32-true".
        device: "cpu", "cuda" or "auto".
        random_state: seed of the Monte-Carlo samples of a softmax; nothing else is random.
        memory: bytes that training may need; None for what is free now.
        verbose: show cost and progress on standard error.

    Attributes:
        model_: the trained torch module.
        predictor_: the model with its scaling.
        history_: metrics per iteration.
        n_iter_: iterations, of both searches.
        converged_: whether the search ended by itself, with no more than ``tol`` to gain.
        objective_: the objective at the end, per training point.
        data_shape_: shape of one data point.
        n_features_in_: features, or numbers in an image.

    Example:
        >>> import numpy as np
        >>> from gramian import FullRankDKMRegressor
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> model = FullRankDKMRegressor().fit(x, np.sin(3 * x[:, 0]))
        >>> model.converged_, round(model.predict([[0.5]]).item(), 3)  # sin 1.5 = 0.997
        (True, 0.997)
    """

    nu: float = NU
    divergence: Divergence = "exact"
    shared_noise: bool = False


@dataclass(kw_only=True, eq=False, repr=False)
class FullRankDKMClassifier(Classifier, FullRankEstimator):
    """A deep kernel machine without inducing points, for the classes of rows or images.

        p(y | x) = E_q[softmax(f(x))_y]

    X are rows (n, features) or images (n, C, H, W), y any labels (n,). Further arguments and
    attributes are those of ``FullRankDKMRegressor``.

    Args:
        likelihood: "categorical", with q(f_c) = N(μ_c, A) learned; or "dirichlet", a regression on
            the logarithms of Dirichlet variables, in closed form and in fewer iterations.
        alpha: of the Dirichlet distributions, which have 1 + α for the label and α elsewhere.
        num_samples: Monte-Carlo samples of the softmax.

    Attributes:
        classes_: the classes, sorted.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from gramian import FullRankDKMClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = FullRankDKMClassifier(likelihood="dirichlet").fit(X[::5], y[::5])
        >>> model.predict_proba(X).shape, model.score(X, y) > 0.9
        ((150, 3), True)
    """

    nu: float = NU
    divergence: Divergence = "exact"
    likelihood: Literal["categorical", "dirichlet"] = "categorical"
    alpha: float = 0.01
    num_samples: int = 100


@dataclass(kw_only=True, eq=False, repr=False)
class NNGPRegressor(Regressor, FullRankEstimator):
    """A Gaussian process with the kernel of an infinitely wide network, for real targets.

        G^ℓ = K(G^{ℓ−1}),  y_c ~ N(0, K(G^L) + σ²_c I)

    The arguments are those of ``FullRankDKMRegressor`` without ``nu``, which is ∞ here, and
    ``divergence``.

    Example:
        >>> import numpy as np
        >>> from gramian import NNGPRegressor
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> model = NNGPRegressor(num_layers=2).fit(x, np.sin(3 * x[:, 0]))
        >>> round(model.predict([[0.5]]).item(), 3)  # sin 1.5 = 0.997
        0.997
    """

    shared_noise: bool = False


@dataclass(kw_only=True, eq=False, repr=False)
class NNGPClassifier(Classifier, FullRankEstimator):
    """A Gaussian process with the kernel of an infinitely wide network, for classes.

    It is a regression on the logarithms of Dirichlet variables, in closed form:

        G^ℓ = K(G^{ℓ−1}),  f_c ~ N(0, K(G^L)),  p(y | x) = E[softmax(f(x))_y]

    The arguments are those of ``FullRankDKMClassifier`` without ``nu``, which is ∞ here,
    ``divergence`` and ``likelihood``.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from gramian import NNGPClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = NNGPClassifier().fit(X[::5], y[::5])
        >>> model.predict_proba(X).shape, model.score(X, y) > 0.9
        ((150, 3), True)
    """

    alpha: float = 0.01
    num_samples: int = 100
