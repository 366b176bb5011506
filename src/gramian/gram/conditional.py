"""Gaussian conditioning: how the data follow when the inducing block of K is replaced by G̃."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gramian.gram.errors import NegativeVarianceError, checks_are_deferred
from gramian.gram.fast.passes import cross, project
from gramian.gram.fast.split import Split, shared_solve_lower
from gramian.gram.linalg import solve_right

NARROW = 16
"""With fewer columns, W is multiplied as part of W̃: narrow matrix products are slow."""


@dataclass(frozen=True, slots=True)
class Conditional:
    """All that conditioning on G̃_ii = W Wᵀ + λ I needs and that does not depend on the data.

    With X = K_ti L_K⁻ᵀ, the whitened data, and W̃ = [W, √λ I], so that G̃ = W̃ W̃ᵀ, and
    U = X L_K⁻¹ W̃:

        G_ti = K_ti K_ii⁻¹ G̃_ii                          = U W̃ᵀ
        g_tt = diag(K_ti K_ii⁻¹ G̃_ii K_ii⁻¹ K_it + K_tt·i) = k_tt − |x|² + |u|²

    (Algorithm 1 and Eq. gram_ind_prop.) No factorisation of G̃ is needed, and the last term is a
    square, so only k_tt − |x|², what the inducing points do not explain of the data, can go below
    zero by rounding.
    """

    kernel_factor: Float[Tensor, "P P"]  # L_K, with K_ii = L_K L_Kᵀ
    factor: Float[Tensor, "P gamma"]  # W
    whitened_factor: Float[Tensor, "P columns"]  # L_K⁻¹ W̃
    jitter: float  # λ
    ii: Float[Tensor, "P P"]  # G̃_ii

    @classmethod
    def on(
        cls,
        kernel_factor: Float[Tensor, "P P"],
        factor: Float[Tensor, "P gamma"],
        jitter: float,
        split: Split | None = None,
    ) -> Conditional:
        """Condition on G̃_ii = W Wᵀ + λ I, given L_K and W; processes may share the solve."""
        L_K, W = kernel_factor, factor
        G_ii = W @ W.mT
        if jitter:
            G_ii = G_ii + jitter * torch.eye(len(W), dtype=W.dtype, device=W.device)
        whitened = shared_solve_lower(L_K, with_jitter(W, jitter), split)
        return cls(L_K, W, whitened, jitter, G_ii)

    def whiten(self, K_ti: Float[Tensor, "N P"]) -> Float[Tensor, "N P"]:
        """X = K_ti L_K⁻ᵀ."""
        return solve_right(K_ti, self.kernel_factor.mT)

    def project(
        self, X: Float[Tensor, "N P"], k_tt: Float[Tensor, " N"] | None
    ) -> tuple[Float[Tensor, "N columns"], Float[Tensor, " N"]]:
        """U and g_tt from the whitened data; without k_tt, g_tt = |u|²."""
        U, g_tt = project(X, self.whitened_factor, less=k_tt is not None)
        return U, g_tt if k_tt is None else k_tt + g_tt

    def cross(
        self,
        U: Float[Tensor, "N columns"],
        column: Float[Tensor, " scale"] | None = None,
        skip: Float[Tensor, "N P"] | None = None,
        skip_weight: float = 1.0,
    ) -> Float[Tensor, "N P"]:
        """G_ti = U W̃ᵀ, its columns times ``column`` (one factor or P), plus a weighted ``skip``."""
        W, tail = self.factor, math.sqrt(self.jitter) * U.new_ones(1) if self.jitter else None
        if tail is not None and W.shape[1] < NARROW:
            W, tail = with_jitter(W, self.jitter), None
        if column is not None:
            W = column[:, None] * W
            tail = None if tail is None else column * tail
        return cross(U, W, tail, skip, skip_weight)


def with_jitter(W: Float[Tensor, "P gamma"], jitter: float) -> Float[Tensor, "P columns"]:
    """W̃ = [W, √λ I]; W itself without jitter."""
    if not jitter:
        return W
    eye = torch.eye(len(W), dtype=W.dtype, device=W.device)
    return torch.cat([W, math.sqrt(jitter) * eye], dim=1)


@dataclass(frozen=True)
class VarianceCheck:
    """What to do about variances that rounding has made negative.

        g_tt > threshold, or an error;  to clamp: g_tt → max(g_tt, 0)

    Args:
        threshold: a variance at or below it, or NaN, is an error (−1e-10 as published).
        clamp: raise nothing; set variances below 0 to 0 and count them. NaN stays an error.

    Example:
        >>> import torch
        >>> from gramian import VarianceCheck
        >>> VarianceCheck(clamp=True)(torch.tensor([0.5, -1e-6]))  # and how many were below 0
        (tensor([0.5000, 0.0000]), tensor(1))
    """

    threshold: float = -1e-10
    clamp: bool = False

    def __call__(
        self, variance: Float[Tensor, "*shape"]
    ) -> tuple[Float[Tensor, "*shape"], Int[Tensor, ""]]:
        """The checked variances and how many were clamped."""
        if not checks_are_deferred():
            self._raise_if_bad(variance)
        elif not self.clamp:
            variance = variance.masked_fill(variance <= self.threshold, math.nan)
        if self.clamp:
            return variance.clamp_min(0.0), (variance < 0).sum()
        return variance, torch.zeros((), dtype=torch.int64, device=variance.device)

    def _raise_if_bad(self, variance: Tensor) -> None:
        smallest = variance.amin()  # NaN if there is one
        if not (smallest > self.threshold or (self.clamp and not smallest.isnan())):
            passed = ~variance.isnan() if self.clamp else variance > self.threshold
            num_bad = int((~passed).sum())
            raise NegativeVarianceError(num_bad, variance.numel(), smallest.item(), self.threshold)
