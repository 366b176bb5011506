"""Classes and real targets as scikit-learn has them, and predictions of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d
from torch import Tensor

from gramian.gram.blocks import Marginals
from gramian.nn.likelihoods import PerTarget
from gramian.train.estimators.base import Array, Estimator, draw_seed, refuse_dates, tensor


class Classifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """Classes of any kind ↔ class numbers, and predictions of them."""

    classes_: Array

    def _encode(self, y: Any, reset: bool, classes: Any = None) -> tuple[Tensor, tuple[str, ...]]:
        """Class numbers and class names; sets ``classes_`` unless they are known."""
        refuse_dates("y", y)
        y = check_array(y, ensure_2d=False, dtype=None, input_name="y")
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        found = np.unique(y if classes is None else classes) if reset else self.classes_
        if classes is not None and not np.array_equal(found, np.unique(classes)):
            raise ValueError(f"classes={classes!r} is not the same as before: {self.classes_!r}")
        if len(found) < 2:
            raise ValueError(
                f"{type(self).__name__} needs samples of at least 2 classes, got 1 class: {found!r}"
            )
        unknown = np.setdiff1d(y, found)
        if len(unknown):
            raise ValueError(f"y has labels {unknown!r} that are not among the classes {found!r}")
        self.classes_ = found
        return tensor(np.searchsorted(found, y), torch.int64), tuple(map(str, found))

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities, [n, C], in the order of ``classes_``."""
        p = self._predictions(X)["probabilities"].astype(np.float64)
        return p / p.sum(1, keepdims=True)

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of the class probabilities."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def decision_function(self, X: Any) -> Array:
        """Log-probabilities [n, C]; of two classes the log-odds [n] of the second."""
        log_p = self.predict_log_proba(X)
        return log_p[:, 1] - log_p[:, 0] if len(self.classes_) == 2 else log_p

    def predict(self, X: Any) -> Array:
        """The most probable class of each row."""
        p = self.predict_proba(X)
        return self.classes_[p.argmax(1)]

    def latent_mean_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Mean and variance of the logits, both [n, C]; the classes share the variance."""
        found = self._predictions(X)
        mean, var = found["latent_mean"], found["latent_variance"]
        return mean, np.broadcast_to(var, mean.shape).copy()

    def _facts(self) -> dict[str, Any]:
        classes, dtype = self.classes_.tolist(), self.classes_.dtype.str
        return {**super()._facts(), "classes": classes, "classes_dtype": dtype}

    def _restore(self, facts: dict[str, Any]) -> None:
        super()._restore(facts)
        self.classes_ = np.array(facts["classes"], dtype=np.dtype(facts["classes_dtype"]))


class Regressor(MultiOutputMixin, RegressorMixin, Estimator):  # type: ignore[misc]
    """Targets [n] or [n, T], and predictions of them, in their own units."""

    n_outputs_: int

    def _encode(self, y: Any, reset: bool, classes: Any = None) -> tuple[Tensor, tuple[str, ...]]:
        """Targets [n, T], and no class names."""
        refuse_dates("y", y)
        targets = check_array(y, dtype=np.float64, ensure_2d=False, input_name="y")
        flat = targets.ndim == 1
        targets = targets[:, None] if flat else targets
        if not reset and targets.shape[1] != self.n_outputs_:
            raise ValueError(f"y has {targets.shape[1]} targets, but had {self.n_outputs_} before")
        if reset:
            self.n_outputs_, self._flat = targets.shape[1], flat
        return tensor(targets, torch.float64), ()

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False
    ) -> Array | tuple[Array, Array]:
        """Mean of the targets and, if asked for, their deviation or covariance, noise included.

        The covariance is that of all rows together, [n, n] or [n, n, T]; its memory grows with n².
        """
        if return_std and return_cov:
            raise RuntimeError("at most one of return_std and return_cov can be asked for")
        found = self._predictions(X)
        mean = self._shaped(found["mean"])
        if return_cov:
            return mean, self._covariance(X, found["variance"])
        return (mean, self._shaped(np.sqrt(found["variance"]))) if return_std else mean

    def _covariance(self, X: Any, variance: Array) -> Array:
        """Of the targets: of f between rows, and all that is uncertain on the diagonal."""
        likelihood = self.model_.likelihood
        if likelihood.targets != "real":
            raise ValueError(
                "return_cov is for real targets: the covariance of counts is not that of f. "
                "sample_y has joint draws of them"
            )
        q = self.predictor_.joint(self._raw(X, reset=False))
        cov = (q.cov * likelihood.scale.square()[:, None, None]).movedim(0, -1).cpu().numpy()
        rows = np.arange(len(cov))
        cov[rows, rows] = variance
        return cov[..., 0] if self._flat else cov

    def latent_mean_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Mean and variance of the function without noise, in the units of the targets.

        With a likelihood for counts, of the logarithm of the rate.
        """
        found = self._predictions(X)
        mean, var = found["latent_mean"], found["latent_variance"]
        return self._shaped(mean), self._shaped(np.broadcast_to(var, mean.shape).copy())

    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | None = 0,
        noise: bool = True,
    ) -> Array:
        """Targets drawn together for all rows: whole functions, and noise: [n, (T,) samples].

        Without noise the functions alone, as ``latent_mean_and_variance`` has them. Memory grows
        with n².
        """
        check_is_fitted(self, "predictor_")
        q, likelihood = self.predictor_.joint(self._raw(X, reset=False)), self.model_.likelihood
        assert isinstance(likelihood, PerTarget)
        draw = torch.Generator().manual_seed(draw_seed(random_state))
        drawn = q.sample(n_samples, draw)
        if noise:
            drawn = likelihood.draw_targets(drawn, draw)
        else:
            flat = drawn.flatten(0, 1)
            drawn = likelihood.latent(Marginals(flat, flat.square())).mean.view(drawn.shape)
        return self._shaped(drawn.movedim(0, -1).cpu().numpy())

    def _shaped(self, values: Array) -> Array:
        return values[:, 0] if self._flat else values

    def _facts(self) -> dict[str, Any]:
        return {**super()._facts(), "n_outputs": self.n_outputs_, "flat": self._flat}

    def _restore(self, facts: dict[str, Any]) -> None:
        super()._restore(facts)
        self.n_outputs_, self._flat = facts["n_outputs"], facts["flat"]
