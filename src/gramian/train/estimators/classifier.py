"""What the classifiers share: labels of any kind, probabilities, portions of data."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d
from torch import Tensor

from gramian.train.estimators.base import PredictorEstimator
from gramian.train.estimators.epoch_estimator import DKMEstimator
from gramian.train.estimators.tools import Array, tensor

Me = TypeVar("Me", bound="ProbabilisticClassifier")
Portions = TypeVar("Portions", bound="PortionClassifier")


class ProbabilisticClassifier(ClassifierMixin, PredictorEstimator):  # type: ignore[misc]
    """Classes of any kind ↔ class numbers, and predictions of them."""

    classes_: Array

    def _class_numbers(self, y: Any, classes: Any = None) -> tuple[Tensor, tuple[str, ...]]:
        """Class numbers and class names; sets ``classes_`` unless they are known."""
        y = check_array(y, ensure_2d=False, dtype=None, input_name="y")
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        known = hasattr(self, "predictor_")
        found = self.classes_ if known else np.unique(y if classes is None else classes)
        if known and classes is not None and not np.array_equal(self.classes_, np.unique(classes)):
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

    def fit(self: Me, X: Any, y: Any) -> Me:
        """Train; with ``warm_start`` from the present weights."""
        if not self._continues():
            self.__dict__.pop("predictor_", None)
        x = self._inputs(X, y, reset=not self._continues())
        numbers, names = self._class_numbers(y)
        self._fit(x, numbers, names)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities, [n, C], in the order of ``classes_``."""
        check_is_fitted(self, "predictor_")
        p = self.predictor_.probabilities(self._raw(X, reset=False)).double().cpu().numpy()
        return p / p.sum(1, keepdims=True)

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of the class probabilities."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def predict(self, X: Any) -> Array:
        """The most probable class of each row."""
        p = self.predict_proba(X)
        return self.classes_[p.argmax(1)]

    def latent_mean_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Mean and variance of the logits, both [n, C]; the classes share the variance."""
        check_is_fitted(self, "predictor_")
        q = self.predictor_.latent(self._raw(X, reset=False))
        return q.mean.cpu().numpy(), q.var.expand_as(q.mean).cpu().numpy().copy()

    def _facts(self) -> dict[str, Any]:
        classes, dtype = self.classes_.tolist(), self.classes_.dtype.str
        return {**super()._facts(), "classes": classes, "classes_dtype": dtype}

    def _restore(self, facts: dict[str, Any]) -> None:
        super()._restore(facts)
        self.classes_ = np.array(facts["classes"], dtype=np.dtype(facts["classes_dtype"]))


class PortionClassifier(ProbabilisticClassifier, DKMEstimator):
    """A classifier with inducing points, which can also learn from portions of the data."""

    def partial_fit(self: Portions, X: Any, y: Any, classes: Any = None) -> Portions:
        """One pass over a portion of the data, starting from the present weights.

        The first call needs ``classes``, all that will ever come; it chooses the inducing points
        and fits the scaling. Adam's memory is kept from call to call, until the next ``fit``.
        """
        first = not hasattr(self, "predictor_")
        if first and classes is None:
            raise ValueError("the first call of partial_fit needs classes=, all of them")
        x = self._inputs(X, y, reset=first)
        numbers, names = self._class_numbers(y, classes)
        self._partial_fit(x, numbers, names)
        return self
