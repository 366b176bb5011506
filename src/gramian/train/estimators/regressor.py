"""What the regressors share: targets of any number and scale, means and deviations."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted
from torch import Tensor

from gramian.train.estimators.base import PredictorEstimator
from gramian.train.estimators.tools import Array, fit_target_scale, in_original_units, tensor

Me = TypeVar("Me", bound="ProbabilisticRegressor")


class ProbabilisticRegressor(MultiOutputMixin, RegressorMixin, PredictorEstimator):  # type: ignore[misc]
    """Targets ↔ standardised targets [n, T], and predictions of them."""

    n_outputs_: int

    def fit(self: Me, X: Any, y: Any) -> Me:
        """Train on targets [n] or [n, T]; with ``warm_start`` from the present weights."""
        going_on = self._continues()
        x, targets = self._targets(X, y, reset=not going_on)
        scale = self.predictor_.target_scale if going_on else fit_target_scale(targets.numpy())
        self._fit(x, targets, target_scale=scale)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Mean of the targets and, if asked for, their standard deviation, noise included."""
        check_is_fitted(self, "predictor_")
        mean, var = self.predictor_.mean_and_variance(self._raw(X, reset=False))
        if return_std:
            return self._shaped(mean.cpu().numpy()), self._shaped(var.sqrt().cpu().numpy())
        return self._shaped(mean.cpu().numpy())

    def latent_mean_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Mean and variance of the function without noise, in the units of the targets."""
        check_is_fitted(self, "predictor_")
        q = self.predictor_.latent(self._raw(X, reset=False))
        mean, var = in_original_units(self.predictor_.target_scale, q.mean, q.var)
        return self._shaped(mean), self._shaped(var)

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0
    ) -> Array:
        """Targets drawn from the prediction of each row, rows independently: [n, (T,) samples]."""
        check_is_fitted(self, "predictor_")
        mean, var = self.predictor_.mean_and_variance(self._raw(X, reset=False))
        draw = check_random_state(random_state)
        noise = draw.standard_normal((*mean.shape, n_samples))
        std = var.sqrt().cpu().numpy()
        return self._shaped(mean.cpu().numpy()[..., None] + std[..., None] * noise)

    def _targets(self, X: Any, y: Any, reset: bool) -> tuple[Tensor, Tensor]:
        """X and y, checked, as tensors, y as [n, T]."""
        x = self._inputs(X, y, reset)
        targets = check_array(y, dtype=np.float64, ensure_2d=False, input_name="y")
        flat = targets.ndim == 1
        targets = targets[:, None] if flat else targets
        if not reset and targets.shape[1] != self.n_outputs_:
            raise ValueError(f"y has {targets.shape[1]} targets, but had {self.n_outputs_} before")
        self.n_outputs_, self._flat = targets.shape[1], flat
        return x, tensor(targets, torch.float64)

    def _shaped(self, values: Array) -> Array:
        return values[:, 0] if self._flat else values

    def _facts(self) -> dict[str, Any]:
        return {**super()._facts(), "n_outputs": self.n_outputs_, "flat": self._flat}

    def _restore(self, facts: dict[str, Any]) -> None:
        super()._restore(facts)
        self.n_outputs_, self._flat = facts["n_outputs"], facts["flat"]
