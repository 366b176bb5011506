"""Gaussian process regression in closed form: the output of a full-rank Gaussian model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gramian.gram.blocks import GramBlocks, Marginals
from gramian.gram.conditional import VarianceCheck
from gramian.gram.linalg import cholesky, cholesky_of_each, solve_lower


@dataclass(frozen=True, slots=True)
class ExactGP:
    """f_c ~ N(0, K) and y_c = f_c + ε, ε ~ N(0, D_c), conditioned on y; K_ii + D_c = L_c L_cᵀ.

    log evidence = Σ_c log N(y_c; 0, L_c L_cᵀ) = −½ Σ_c |L_c⁻¹ y_c|² − Σ_c logdet L_c − ½ P C log 2π
    mean_c       = K_ti L_c⁻ᵀ L_c⁻¹ y_c
    var_c        = k_tt − |L_c⁻¹ K_it|²            of f, without the noise

    With one noise variance σ² for all, D = σ² I, the outputs share one factor and one variance.
    """

    factor: Float[Tensor, "*C P P"]  # L, or L_c of each output
    whitened_targets: Float[Tensor, "*C P columns"]  # L⁻¹ Y, or L_c⁻¹ y_c of one column each

    @classmethod
    def condition(
        cls,
        K_ii: Float[Tensor, "P P"],
        targets: Float[Tensor, "P C"],
        noise_var: Float[Tensor, "*C"] | Float[Tensor, "P C"],
    ) -> ExactGP:
        """Condition on the targets, with σ², σ²_c of each output, or the diagonals of D_c."""
        if noise_var.numel() > 1:
            outputs = [f"output {c}" for c in range(targets.shape[1])]
            D = noise_var.expand_as(targets).mT.diag_embed()
            L = cholesky_of_each(K_ii + D, outputs, what="K_ii + D")
            return cls(L, solve_lower(L, targets.mT[..., None]))
        eye = torch.eye(len(K_ii), dtype=K_ii.dtype, device=K_ii.device)
        L = cholesky(K_ii + noise_var * eye, what="K_ii + σ² I")
        return cls(L, solve_lower(L, targets))

    @property
    def log_evidence(self) -> Float[Tensor, ""]:
        """Σ_c log N(y_c; 0, L_c L_cᵀ), not divided by P."""
        z = self.whitened_targets
        logdet = self.factor.diagonal(dim1=-2, dim2=-1).log().sum()
        return -0.5 * (z.square().sum() + z.numel() * math.log(2 * math.pi)) - z.shape[-1] * logdet

    def data(self, K: GramBlocks, variance_check: VarianceCheck = VarianceCheck()) -> Marginals:
        """Mean and variance of f at each new point."""
        L = self.factor
        X = solve_lower(L, K.ti.mT.expand(*L.shape[:-1], -1))  # L⁻¹ K_it
        var, _ = variance_check(K.tt_diag - X.square().sum(-2))
        mean = X.mT @ self.whitened_targets
        if L.ndim == 2:
            return Marginals(mean, var[:, None])
        return Marginals(mean[..., 0].mT, var.mT)


def dirichlet_targets(
    labels: Tensor, num_classes: int, alpha: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "P C"], Float[Tensor, "P C"]]:
    """Classes as a regression with known noise (Milios et al. 2018): targets and noise variances.

    The Dirichlet distribution of one label, with concentrations a_c = α + [c = y], is normalised
    Gamma(a_c, 1) variables. Log-normal ones with the same two moments have logarithms N(y_c, s²_c):

        s²_c = log(1 + 1/a_c)        y_c = log a_c − s²_c / 2

    The mean over all targets is taken off: softmax does not see it, and f has mean 0.
    """
    onehot = torch.nn.functional.one_hot(labels, num_classes).to(dtype)
    a = onehot + alpha
    noise_var = (1 / a).log1p()
    targets = a.log() - noise_var / 2
    return targets - targets.mean(), noise_var
