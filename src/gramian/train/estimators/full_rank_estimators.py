"""Deep kernel machines without inducing points, and NNGPs, as scikit-learn estimators."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gramian.gram.divergence import Divergence
from gramian.nn.steps.inputs import Lengthscales
from gramian.train.estimators.classifier import ProbabilisticClassifier
from gramian.train.estimators.full_rank_base import FullRankEstimator, Precision
from gramian.train.estimators.regressor import ProbabilisticRegressor
from gramian.train.estimators.tools import no_type_check

NU = 1000.0
"""Pull of the Gram matrices towards the kernel: between those that validation chose on UCI data."""


class FullRankDKMRegressor(ProbabilisticRegressor, FullRankEstimator):
    """A deep kernel machine without inducing points, for real targets of rows or images.

    A kernel on standardised features, ``num_layers`` Gram layers over all training points, and a
    Gaussian process on top, in closed form. Time grows with the cube of the number of training
    points (of images: of all their pixels), memory with its square; a model that does not fit in
    memory is refused. The search starts at the best NNGP.

    X are rows (n, features) or images (n, C, H, W), for which a layer also has a convolution. The
    training data are part of the model, and of what ``save_pretrained`` writes.

    Args:
        num_layers: Gram layers; 0 is a Gaussian process.
        kernel: a name in ``gramian.KERNELS``, or "linear".
        lengthscales: learned scales of features (channels): "none", "one", or "per_feature".
        nu: pull of the Gram matrices towards the kernel; with infinity the kernel is fixed.
        divergence: "exact", "taylor" or "taylor_symmetric".
        filter_size: of the convolutions, odd. Images only.
        strides: of the convolutions, one a layer; () for 1 in all layers. Images only.
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
        history_: a row of figures an iteration.
        n_iter_: iterations, of both searches.
        converged_: whether the search ended before ``max_iter``.
        objective_: the objective at the end, per training point.
        data_shape_: shape of one data point.
        n_features_in_: features, or numbers in an image.
    """

    @no_type_check
    def __init__(
        self,
        *,
        num_layers: int = 1,
        kernel: str = "squared_exponential",
        lengthscales: Lengthscales = "per_feature",
        nu: float = NU,
        divergence: Divergence = "exact",
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
        super().__init__(
            num_layers=num_layers,
            kernel=kernel,
            lengthscales=lengthscales,
            filter_size=filter_size,
            strides=strides,
            kernel_jitter=kernel_jitter,
            standardize=standardize,
            max_iter=max_iter,
            tol=tol,
            precision=precision,
            device=device,
            random_state=random_state,
            memory=memory,
            verbose=verbose,
        )
        self.nu = nu
        self.divergence = divergence


class FullRankDKMClassifier(ProbabilisticClassifier, FullRankEstimator):
    """A deep kernel machine without inducing points, for the classes of rows or images.

    Further arguments and attributes are those of ``FullRankDKMRegressor``.

    Args:
        likelihood: "categorical", with q(f_c) = N(μ_c, A) learned; or "dirichlet", a regression on
            the logarithms of Dirichlet variables, in closed form and in fewer iterations.
        alpha: of the Dirichlet distributions, which have 1 + α for the label and α elsewhere.
        num_samples: Monte-Carlo samples of the softmax.

    Attributes:
        classes_: the classes, sorted.
    """

    @no_type_check
    def __init__(
        self,
        *,
        num_layers: int = 1,
        kernel: str = "squared_exponential",
        lengthscales: Lengthscales = "per_feature",
        nu: float = NU,
        divergence: Divergence = "exact",
        likelihood: Literal["categorical", "dirichlet"] = "categorical",
        alpha: float = 0.01,
        filter_size: int = 3,
        strides: tuple[int, ...] = (),
        kernel_jitter: float | Literal["auto"] = "auto",
        standardize: bool = True,
        max_iter: int = 200,
        tol: float = 1e-6,
        num_samples: int = 100,
        precision: Precision = "64-true",
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
        memory: int | None = None,
        verbose: bool | int = False,
    ) -> None:
        super().__init__(
            num_layers=num_layers,
            kernel=kernel,
            lengthscales=lengthscales,
            filter_size=filter_size,
            strides=strides,
            kernel_jitter=kernel_jitter,
            standardize=standardize,
            max_iter=max_iter,
            tol=tol,
            precision=precision,
            device=device,
            random_state=random_state,
            memory=memory,
            verbose=verbose,
        )
        self.nu = nu
        self.divergence = divergence
        self.likelihood = likelihood
        self.alpha = alpha
        self.num_samples = num_samples


class NNGPRegressor(ProbabilisticRegressor, FullRankEstimator):
    """A Gaussian process with the kernel of an infinitely wide network, for real targets.

    The arguments are those of ``FullRankDKMRegressor`` without ``nu``, which is ∞ here, and
    ``divergence``.
    """


class NNGPClassifier(ProbabilisticClassifier, FullRankEstimator):
    """The same for classes, as a regression on the logarithms of Dirichlet variables.

    The arguments are those of ``FullRankDKMClassifier`` without ``nu``, which is ∞ here,
    ``divergence`` and ``likelihood``.
    """

    likelihood = "dirichlet"

    @no_type_check
    def __init__(
        self,
        *,
        num_layers: int = 1,
        kernel: str = "squared_exponential",
        lengthscales: Lengthscales = "per_feature",
        alpha: float = 0.01,
        filter_size: int = 3,
        strides: tuple[int, ...] = (),
        kernel_jitter: float | Literal["auto"] = "auto",
        standardize: bool = True,
        max_iter: int = 200,
        tol: float = 1e-6,
        num_samples: int = 100,
        precision: Precision = "64-true",
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
        memory: int | None = None,
        verbose: bool | int = False,
    ) -> None:
        super().__init__(
            num_layers=num_layers,
            kernel=kernel,
            lengthscales=lengthscales,
            filter_size=filter_size,
            strides=strides,
            kernel_jitter=kernel_jitter,
            standardize=standardize,
            max_iter=max_iter,
            tol=tol,
            precision=precision,
            device=device,
            random_state=random_state,
            memory=memory,
            verbose=verbose,
        )
        self.alpha = alpha
        self.num_samples = num_samples
