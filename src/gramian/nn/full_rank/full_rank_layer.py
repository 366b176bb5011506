"""A layer of a deep kernel machine without inducing points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import GramBlocks
from gramian.gram.conditional import Conditional
from gramian.gram.divergence import gaussian_divergence
from gramian.gram.full_blocks import FullBlocks, PairConvolution, condition_full
from gramian.gram.linalg import cholesky, solve_lower
from gramian.nn.steps.gram_layer import GramLayer
from gramian.nn.steps.kernels import Kernel


@dataclass(frozen=True, slots=True)
class FullRankState:
    """What a layer makes of the training points."""

    phi_ii: Float[Tensor, "N N"]  # the kernel
    K_ii: Float[Tensor, "n n"]  # Γ of it
    conditional: Conditional | None  # on the learned G_ii; None for ν = ∞

    @property
    def ii(self) -> Float[Tensor, "n n"]:
        """G_ii."""
        return self.K_ii if self.conditional is None else self.conditional.ii


class FullRankLayer(nn.Module):
    """kernel → Γ (images only) → Gram layer, over all training points.

        K    = Γ(K(G^{ℓ−1})),  kl = ν · D(N(0, G^ℓ_ii) ‖ N(0, K_ii))
        G_ti = K_ti K_ii⁻¹ G_ii
        G_tt = K_ti K_ii⁻¹ G_ii K_ii⁻¹ K_it + K_tt − K_ti K_ii⁻¹ K_it

    With ν = ∞ there is nothing to learn and nothing to factorise: G = K.

    Args:
        kernel: K(·).
        conv: Γ; None for rows.
        gram: holds the learned matrix, ν and D.
        relative: the learned matrix is S Sᵀ in G = L_K S Sᵀ L_Kᵀ, K = L_K L_Kᵀ, instead of G. The
            same objective in better coordinates: G follows when the kernel moves.
    """

    def __init__(
        self, kernel: Kernel, conv: PairConvolution | None, gram: GramLayer, relative: bool
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.conv = conv
        self.gram = gram
        self.relative = relative

    def inducing(self, G_ii: Float[Tensor, "N N"]) -> FullRankState:
        """The training points through the layer."""
        phi_ii, K_ii = self._kernels(G_ii)
        learned = self.gram.inducing_gram
        if learned is None:
            return FullRankState(phi_ii, K_ii, None)
        if not self.relative:
            return FullRankState(phi_ii, K_ii, self.gram.inducing(K_ii))
        L_K, S = cholesky(K_ii, what="K_ii"), learned.factor
        L_G = L_K @ S
        return FullRankState(phi_ii, K_ii, Conditional(L_K, L_G, S, 0.0, L_G @ L_G.mT))

    def kl(self, state: FullRankState) -> Float[Tensor, ""]:
        """ν · D(N(0, G_ii) ‖ N(0, K_ii))."""
        gram, conditional = self.gram, state.conditional
        if conditional is None or gram.nu == 0:
            return state.K_ii.new_zeros(())
        L_K, L_G = conditional.kernel_factor, conditional.factor
        return gram.nu * gaussian_divergence(gram.divergence, state.K_ii, L_K, L_G)

    def data(self, G: FullBlocks, state: FullRankState) -> FullBlocks:
        """New data through the layer."""
        K = kernel_of_pairs(self.kernel, G, state.phi_ii)
        K = K if self.conv is None else self.conv.data(K, state.K_ii)
        if state.conditional is None:
            return K
        G = condition_full(K, state.conditional)
        g_tt = G.tt.diagonal(dim1=1, dim2=2)
        checked, _ = self.gram.variance_check(g_tt)
        return FullBlocks(G.ii, G.ti, G.tt + (checked - g_tt).diag_embed())

    def start_gram_(
        self, G_ii: Float[Tensor, "N N"], new: Float[Tensor, "n n"] | None
    ) -> Float[Tensor, "n n"]:
        """Start at ``new``, or at the kernel K_ii that the layer meets, and return it."""
        if self.gram.inducing_gram is None:
            return self.inducing(G_ii).ii
        _, K_ii = self._kernels(G_ii)
        G = K_ii if new is None else new
        if self.relative:
            L_K = cholesky(K_ii, what="K_ii")
            self.gram.set_to_(solve_lower(L_K, solve_lower(L_K, G).mT))  # S Sᵀ = L_K⁻¹ G L_K⁻ᵀ
        else:
            self.gram.set_to_(G)
        return self.inducing(G_ii).ii

    def _kernels(
        self, G_ii: Float[Tensor, "N N"]
    ) -> tuple[Float[Tensor, "N N"], Float[Tensor, "n n"]]:
        """K(G_ii), and Γ of it."""
        phi_ii = self.kernel.inducing(G_ii)
        return phi_ii, phi_ii if self.conv is None else self.conv.inducing(phi_ii)


def kernel_of_pairs(kernel: Kernel, G: FullBlocks, K_ii: Float[Tensor, "N N"]) -> FullBlocks:
    """K_ti and K_tt beside K_ii. Jitter, as in GramBlocks, is only on the diagonal of K_tt."""
    g_tt = G.tt.diagonal(dim1=1, dim2=2)
    K = kernel.data(GramBlocks(G.ii, G.ti, g_tt), K_ii)
    eye = torch.eye(G.tt.shape[1], dtype=torch.bool, device=G.tt.device)
    apart = torch.where(eye, torch.zeros_like(G.tt), G.tt)  # some kernels are steep at c² = xy
    K_tt = kernel.every(apart, g_tt[:, :, None], g_tt[:, None])
    return FullBlocks(K_ii, K.ti, torch.where(eye, K.tt_diag[:, :, None], K_tt))
