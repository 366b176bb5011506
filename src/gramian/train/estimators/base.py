"""What all scikit-learn estimators of this library share: a fitted predictor, and its files."""

from __future__ import annotations

import json
from abc import abstractmethod
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, check_is_fitted
from torch import Tensor

from gramian.train.estimators.tools import UNSCALED, Array, TargetScale
from gramian.train.predict.predictor import BasePredictor, Predictor, PretrainedError
from gramian.train.record.files import write_text_atomically
from gramian.train.record.run_folder import Row

ESTIMATOR = "estimator.json"
Me = TypeVar("Me", bound="PredictorEstimator")


class PredictorEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator around a predictor, which a subclass makes in ``_fit``."""

    predictor_type: ClassVar[type[BasePredictor]] = Predictor

    predictor_: Any
    history_: list[Row]
    n_iter_: int

    @abstractmethod
    def _raw(self, X: Any, reset: bool) -> Tensor:
        """X, checked, as the predictor wants it."""

    @abstractmethod
    def _fit(
        self,
        x: Tensor,
        y: Tensor,
        class_names: tuple[str, ...] = (),
        target_scale: TargetScale = UNSCALED,
    ) -> None:
        """Train on raw data; y are class numbers, or targets [n, T] in their own units."""

    @property
    def model_(self) -> Any:
        """The trained model, a torch module."""
        if "predictor_" not in vars(self):
            raise AttributeError("model_: this estimator is not fitted yet")
        return self.predictor_.model

    def _continues(self) -> bool:
        """Whether the next fit goes on from the present weights."""
        return False

    def _inputs(self, X: Any, y: Any, reset: bool) -> Tensor:
        """X, checked, and as long as y."""
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        x = self._raw(X, reset)
        check_consistent_length(x, y)
        return x

    # ---- files ----

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the fitted estimator: safetensors and JSON, no pickle.

        Training data are written only if they are part of the model, as without inducing points.
        ``random_state`` is kept if it is an integer or None.
        """
        check_is_fitted(self, "predictor_")
        self.predictor_.save_pretrained(folder)
        params = self.get_params(deep=False)
        if not isinstance(params["random_state"], Integral | None):
            params["random_state"] = None
        description = {"class": type(self).__name__, "params": params, **self._facts()}
        text = json.dumps(description, indent=2, default=_plain)
        write_text_atomically(Path(folder) / ESTIMATOR, text + "\n")

    @classmethod
    def from_pretrained(cls: type[Me], folder: str | Path, device: str = "cpu") -> Me:
        """Read what ``save_pretrained`` wrote."""
        path = Path(folder) / ESTIMATOR
        try:
            facts = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise PretrainedError(f"{folder} holds no saved estimator: no {ESTIMATOR}") from error
        except json.JSONDecodeError as error:
            raise PretrainedError(f"{path} cannot be read: {error}") from error
        if facts.get("class") != cls.__name__:
            raise PretrainedError(f"{folder} holds a {facts.get('class')}, not a {cls.__name__}")
        params: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in facts["params"].items()
        }
        estimator = cls(**params)
        estimator.predictor_ = cls.predictor_type.from_pretrained(folder, device)
        estimator._restore(facts)
        return estimator

    def _facts(self) -> dict[str, Any]:
        """Fitted attributes that the predictor does not hold, as JSON values."""
        names = getattr(self, "feature_names_in_", None)
        return {
            "history": self.history_,
            "n_features_in": self.n_features_in_,
            "feature_names_in": None if names is None else names.tolist(),
        }

    def _restore(self, facts: dict[str, Any]) -> None:
        """The inverse of ``_facts``."""
        self.history_ = facts["history"]
        self.n_iter_ = len(self.history_)
        self.n_features_in_ = facts["n_features_in"]
        if facts["feature_names_in"] is not None:
            self.feature_names_in_: Array = np.array(facts["feature_names_in"], dtype=object)


def _plain(value: Any) -> Any:
    """NumPy numbers as Python's, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be stored in {ESTIMATOR}")
