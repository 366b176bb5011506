"""Gaussian conditioning: how the data follow when the inducing block of K is replaced by G̃."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gramian.gram.errors import NegativeVarianceError
from gramian.gram.linalg import solve_lower, solve_upper


@dataclass(frozen=True, slots=True)
class Conditional:
    """All that conditioning on G̃_ii = W Wᵀ + λ I needs and that does not depend on the data.

    With X = L_K⁻¹ K_it (K_it itself is not needed), U = Xᵀ L_K⁻¹ W and a = K_ti K_ii⁻¹ = Xᵀ L_K⁻¹:

        G_ti = K_ti K_ii⁻¹ G̃_ii                          = U Wᵀ + λ a
        g_tt = diag(K_ti K_ii⁻¹ G̃_ii K_ii⁻¹ K_it + K_tt·i) = k_tt − |x|² + |u|² + λ |a|²

    (Algorithm 1 and Eq. gram_ind_prop.) No factorisation of G̃ is needed, and the last three terms
    are squares, so only k_tt − |x|² can go below zero by rounding.
    """

    kernel_factor: Float[Tensor, "P P"]  # L_K, with K_ii = L_K L_Kᵀ
    factor: Float[Tensor, "P columns"]  # W
    whitened_factor: Float[Tensor, "P columns"]  # L_K⁻¹ W
    jitter: float  # λ
    ii: Float[Tensor, "P P"]  # G̃_ii

    @classmethod
    def of(
        cls, L_K: Float[Tensor, "P P"], W: Float[Tensor, "P columns"], jitter: float = 0.0
    ) -> Conditional:
        """Whiten W and form G̃_ii, once for all data."""
        G_ii = W @ W.mT
        if jitter:
            G_ii = G_ii + jitter * torch.eye(len(G_ii), dtype=G_ii.dtype, device=G_ii.device)
        return cls(L_K, W, solve_lower(L_K, W), jitter, G_ii)

    def whiten(self, K_ti: Float[Tensor, "N P"]) -> Float[Tensor, "P N"]:
        """X = L_K⁻¹ K_it."""
        return solve_lower(self.kernel_factor, K_ti.mT)

    def cross_and_variance(
        self, X: Float[Tensor, "P N"], k_tt: Float[Tensor, " N"]
    ) -> tuple[Float[Tensor, "N P"], Float[Tensor, " N"]]:
        """G_ti and g_tt from X and k_tt."""
        U = X.mT @ self.whitened_factor
        G_ti = U @ self.factor.mT
        g_tt = k_tt - X.square().sum(0) + U.square().sum(1)
        if self.jitter:
            a = solve_upper(self.kernel_factor, X).mT
            G_ti = G_ti + self.jitter * a
            g_tt = g_tt + self.jitter * a.square().sum(1)
        return G_ti, g_tt


@dataclass(frozen=True)
class VarianceCheck:
    """What to do about variances that rounding has made negative.

    Args:
        threshold: a variance at or below it, or NaN, is an error (−1e-10 as published).
        clamp: raise nothing; set variances below 0 to 0 and count them. NaN stays an error.
    """

    threshold: float = -1e-10
    clamp: bool = False

    def __call__(
        self, variance: Float[Tensor, "*shape"]
    ) -> tuple[Float[Tensor, "*shape"], Int[Tensor, ""]]:
        """The checked variances and how many were clamped."""
        passed = ~variance.isnan() if self.clamp else variance > self.threshold
        if not passed.all():
            bad = variance[~passed]
            smallest = float("nan") if bad.isnan().any() else bad.min().item()
            raise NegativeVarianceError(len(bad), variance.numel(), smallest, self.threshold)
        negative = (variance < 0).sum()
        if self.clamp:
            return variance.clamp_min(0.0), negative
        return variance, torch.zeros_like(negative)
