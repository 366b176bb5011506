"""The last layer: a Gaussian process with inducing outputs, on top of the learned kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import GramBlocks, Marginals
from gramian.gram.conditional import VarianceCheck
from gramian.gram.divergence import Divergence, gaussian_divergence
from gramian.gram.linalg import cholesky, solve_lower
from gramian.gram.random import normals
from gramian.nn.steps.positive_definite import PositiveDefinite

OutputStart = Literal["random", "kernel", "prior"]


@dataclass(frozen=True, slots=True)
class OutputState:
    """All that predictions need and that does not depend on the data."""

    kernel_factor: Float[Tensor, "P P"]  # L_K, with K_ii = L_K L_Kᵀ
    whitened_mean: Float[Tensor, "P C"]  # L_K⁻¹ μ
    whitened_factor: Float[Tensor, "P P"]  # L_K⁻¹ L_A


class GPOutput(nn.Module):
    """q(f_t) from q(f_i) = N(μ_c, A), A shared by the C outputs (Algorithm 1, last lines).

        mean_c = K_ti K_ii⁻¹ μ_c
        var    = k_tt − K_ti K_ii⁻¹ K_it + K_ti K_ii⁻¹ A K_ii⁻¹ K_it
        kl     = τ (C · D(N(0,A) ‖ N(0,K_ii)) + ½ Σ_c μ_cᵀ K_ii⁻¹ μ_c)

    τ = 1/C if tempered, as in the published image models, and 1 if not.

    Args:
        num_inducing: P.
        num_outputs: C.
        divergence: which D.
        tempered: average the KL over the outputs instead of summing it.
        variance_check: what to do about negative variances.
        start: where q starts: ``random``, as published, with normals for μ and a nearly singular
            random matrix for A (the first Taylor objective is then enormous); ``kernel``, with A
            at the kernel K_ii that it meets first; or ``prior``, with that A and μ = 0.
    """

    def __init__(
        self,
        num_inducing: int,
        num_outputs: int,
        divergence: Divergence = "taylor",
        tempered: bool = True,
        variance_check: VarianceCheck = VarianceCheck(),
        start: OutputStart = "random",
    ) -> None:
        super().__init__()
        self.q_mean = nn.Parameter(torch.zeros(num_inducing, num_outputs))
        self.q_cov = PositiveDefinite(num_inducing)
        self.divergence: Divergence = divergence
        self.tempered = tempered
        self.variance_check = variance_check
        self.start: OutputStart = start

    def inducing(self, K_ii: Float[Tensor, "Pi Pi"]) -> OutputState:
        """What prediction needs of the inducing points."""
        L_K, L_A = cholesky(K_ii, what="K_ii"), self.q_cov.factor
        return OutputState(L_K, solve_lower(L_K, self.q_mean), solve_lower(L_K, L_A))

    def kl(self, K_ii: Float[Tensor, "Pi Pi"], state: OutputState) -> Float[Tensor, ""]:
        """τ (C · D(N(0,A) ‖ N(0,K_ii)) + ½ Σ_c μ_cᵀ K_ii⁻¹ μ_c)."""
        C, L_K = self.q_mean.shape[1], state.kernel_factor
        _, L_A = self._coordinates(L_K)
        D = gaussian_divergence(self.divergence, K_ii, L_K, L_A)
        kl = C * D + 0.5 * state.whitened_mean.square().sum()
        return kl / C if self.tempered else kl

    def at_inducing(self, state: OutputState) -> Marginals:
        """Mean and variance of the outputs at the inducing points themselves: μ and diag A."""
        mu, L_A = self._coordinates(state.kernel_factor)
        return Marginals(mu, L_A.square().sum(1, keepdim=True))

    def _coordinates(
        self, L_K: Float[Tensor, "P P"]
    ) -> tuple[Float[Tensor, "P C"], Float[Tensor, "P P"]]:
        """μ and L_A, with A = L_A L_Aᵀ."""
        return self.q_mean, self.q_cov.factor

    def data(self, K: GramBlocks, state: OutputState) -> Marginals:
        """Mean and variance of the outputs of each data point."""
        X = solve_lower(state.kernel_factor, K.ti.mT)
        U = X.mT @ state.whitened_factor
        var, _ = self.variance_check(K.tt_diag - X.square().sum(0) + U.square().sum(1))
        return Marginals(X.mT @ state.whitened_mean, var[:, None])

    def forward(self, K: GramBlocks) -> tuple[Marginals, Float[Tensor, ""]]:
        """Marginals of a batch, and the KL."""
        state = self.inducing(K.ii)
        return self.data(K, state), self.kl(K.ii, state)

    @torch.no_grad()
    def start_at_prior_(self, K_ii: Float[Tensor, "Pi Pi"]) -> None:
        """Start at μ = 0 and A = K_ii."""
        self.q_mean.zero_()
        self.q_cov.set_to_(K_ii, what="K_ii")

    @torch.no_grad()
    def start_(self, K_ii: Float[Tensor, "Pi Pi"], generator: torch.Generator) -> None:
        """Start as ``start`` says."""
        if self.start == "prior":
            self.start_at_prior_(K_ii)
            return
        self.q_mean.copy_(normals(self.q_mean.shape, generator, self.q_mean.dtype))
        if self.start == "kernel":
            self.q_cov.set_to_(K_ii, what="K_ii")
            return
        W = normals(K_ii.shape, generator, torch.float64)
        A = W @ W.mT / len(W) + 1e-4 * torch.eye(len(W), dtype=W.dtype, device=W.device)
        self.q_cov.set_to_(A.to(K_ii.device))


class RelativeOutput(GPOutput):
    """The same q(f_i) in coordinates of the kernel: μ = L_K m and A = L_K S Sᵀ L_Kᵀ.

    ``q_mean`` is m and ``q_cov`` is S Sᵀ, so q follows when the kernel moves.
    """

    def inducing(self, K_ii: Float[Tensor, "Pi Pi"]) -> OutputState:
        """What prediction needs of the inducing points."""
        return OutputState(cholesky(K_ii, what="K_ii"), self.q_mean, self.q_cov.factor)

    def _coordinates(
        self, L_K: Float[Tensor, "P P"]
    ) -> tuple[Float[Tensor, "P C"], Float[Tensor, "P P"]]:
        return L_K @ self.q_mean, L_K @ self.q_cov.factor

    @torch.no_grad()
    def start_at_prior_(self, K_ii: Float[Tensor, "Pi Pi"]) -> None:
        """Start at μ = 0 and A = K_ii."""
        self.q_mean.zero_()
        self.q_cov.set_to_(torch.eye(len(K_ii)).to(K_ii))
