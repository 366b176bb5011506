"""Gaussian process regression in closed form: the output of a full-rank Gaussian model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gramian.gram.blocks import GramBlocks, Marginals
from gramian.gram.conditional import VarianceCheck
from gramian.gram.linalg import cholesky, solve_lower


@dataclass(frozen=True, slots=True)
class ExactGP:
    """f ~ N(0, K) and y_c = f_c + ε, ε ~ N(0, σ²), conditioned on y; S = K_ii + σ² I = L Lᵀ.

    log evidence = Σ_c log N(y_c; 0, S) = −½ ‖L⁻¹ Y‖² − C logdet L − ½ P C log 2π
    mean         = K_ti S⁻¹ Y
    var          = k_tt − K_ti S⁻¹ K_it            of f, without the noise
    """

    factor: Float[Tensor, "P P"]  # L
    whitened_targets: Float[Tensor, "P C"]  # L⁻¹ Y

    @classmethod
    def condition(
        cls, K_ii: Float[Tensor, "P P"], targets: Float[Tensor, "P C"], noise_var: Float[Tensor, ""]
    ) -> ExactGP:
        """Condition on the targets."""
        eye = torch.eye(len(K_ii), dtype=K_ii.dtype, device=K_ii.device)
        L = cholesky(K_ii + noise_var * eye, what="K_ii + σ² I")
        return cls(L, solve_lower(L, targets))

    @property
    def log_evidence(self) -> Float[Tensor, ""]:
        """Σ_c log N(y_c; 0, S), not divided by P."""
        P, C = self.whitened_targets.shape
        squares, logdet = self.whitened_targets.square().sum(), self.factor.diagonal().log().sum()
        return -0.5 * (squares + P * C * math.log(2 * math.pi)) - C * logdet

    def data(self, K: GramBlocks, variance_check: VarianceCheck = VarianceCheck()) -> Marginals:
        """Mean and variance of f at each new point."""
        X = solve_lower(self.factor, K.ti.mT)  # L⁻¹ K_it
        var, _ = variance_check(K.tt_diag - X.square().sum(0))
        return Marginals(X.mT @ self.whitened_targets, var[:, None])
