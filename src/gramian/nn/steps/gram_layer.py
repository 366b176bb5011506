"""The Gram layer: where a deep kernel machine learns."""

from __future__ import annotations

import math
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import GramBlocks
from gramian.gram.conditional import Conditional, VarianceCheck
from gramian.gram.divergence import Divergence, gaussian_divergence
from gramian.gram.fast.split import Split
from gramian.gram.linalg import cholesky
from gramian.gram.skr import SKR
from gramian.nn.steps.positive_definite import PositiveDefinite

Unexplained = Literal["kept", "dropped"]


class GramLayer(nn.Module):
    """Replace K_ii by a learned G_ii, and let the data follow (Algorithm 1; Eq. gram_ind_prop).

        G̃_ii = G_ii, with SKR's noise in training and its jitter always
        G_ti = K_ti K_ii⁻¹ G̃_ii
        G_tt = K_ti K_ii⁻¹ G̃_ii K_ii⁻¹ K_it + K_tt − K_ti K_ii⁻¹ K_it
        kl   = ν · D(N(0, G_ii) ‖ N(0, K_ii)), of the G_ii without noise and jitter

    With ν = ∞ there is nothing to learn: G_ii = K_ii, the NNGP. K_tt − K_ti K_ii⁻¹ K_it is what the
    inducing points do not explain of the data. Dropped, all that the next layer meets are the
    inducing points' own features: with few of them it learns faster, but a point that is like none
    of them has then no variance inside the model (see docs/SHARP_BITS.md). Where processes share
    the work on the inducing points, ``split`` is set.

    Args:
        num_inducing: P.
        nu: ν, the weight of the pull towards the kernel.
        divergence: which D.
        skr: stochastic kernel regularisation.
        variance_check: what to do about negative entries of G_tt.
        unexplained: the variance that the inducing points do not explain: kept, or dropped.
    """

    def __init__(
        self,
        num_inducing: int,
        nu: float = 0.001,
        divergence: Divergence = "taylor",
        skr: SKR = SKR(),
        variance_check: VarianceCheck = VarianceCheck(),
        unexplained: Unexplained = "kept",
    ) -> None:
        super().__init__()
        if not nu >= 0:
            raise ValueError(f"nu must be 0 or more, or infinity, got {nu}")
        self.inducing_gram = None if nu == math.inf else PositiveDefinite(num_inducing)
        self.num_inducing = num_inducing
        self.nu = nu
        self.divergence: Divergence = divergence
        self.skr = skr
        self.variance_check = variance_check
        self.unexplained: Unexplained = unexplained
        self.split: Split | None = None

    def inducing(
        self, K_ii: Float[Tensor, "Pi Pi"], noise: Float[Tensor, "Pi gamma"] | None = None
    ) -> Conditional:
        """Condition on G̃_ii. ``noise`` is needed to train with sampling."""
        self._check_noise(noise)
        L_K = cholesky(K_ii, what="K_ii")
        L_G = L_K if self.inducing_gram is None else self.inducing_gram.factor
        return Conditional.on(L_K, self.skr.factor(L_G, noise), self.skr.jitter, self.split)

    def kl(self, K_ii: Float[Tensor, "Pi Pi"], conditional: Conditional) -> Float[Tensor, ""]:
        """ν · D(N(0, G_ii) ‖ N(0, K_ii))."""
        if self.inducing_gram is None or self.nu == 0:
            return K_ii.new_zeros(())
        L_K, L_G = conditional.kernel_factor, self.inducing_gram.factor
        return self.nu * gaussian_divergence(self.divergence, K_ii, L_K, L_G, self.split)

    def forward(
        self, K: GramBlocks, noise: Float[Tensor, "Pi gamma"] | None = None
    ) -> tuple[GramBlocks, Float[Tensor, ""]]:
        """All blocks of G̃, and the layer's KL."""
        conditional, flat = self.inducing(K.ii, noise), K.flat()
        U, g_tt = self.project(conditional, conditional.whiten(flat.ti), flat.tt_diag)
        g_tt, _ = self.variance_check(g_tt)
        G = GramBlocks(conditional.ii, conditional.cross(U), g_tt)
        return G.shaped_like(K), self.kl(K.ii, conditional)

    def project(
        self, conditional: Conditional, X: Float[Tensor, "N Pi"], k_tt: Float[Tensor, " N"]
    ) -> tuple[Float[Tensor, "N columns"], Float[Tensor, " N"]]:
        """U and g_tt of whitened data, with or without what is unexplained."""
        return conditional.project(X, k_tt if self.unexplained == "kept" else None)

    @property
    def samples(self) -> bool:
        """Whether a pass in the present mode needs noise."""
        return self.training and self.skr.samples

    def set_to_(self, K_ii: Float[Tensor, "Pi Pi"]) -> None:
        """Start at G_ii = K_ii."""
        if self.inducing_gram is not None:
            self.inducing_gram.set_to_(K_ii, what="K_ii")

    def _check_noise(self, noise: Tensor | None) -> None:
        """Raise unless there is noise just when a pass in the present mode needs it."""
        if self.samples and noise is None:
            raise ValueError(
                "training with SKR needs noise: pass model.draw_noise(generator), "
                "or call model.eval() for predictions"
            )
        if noise is not None and not self.samples:
            raise ValueError(
                "noise was passed, but SKR samples only in training mode with a gamma_fraction"
            )

    def extra_repr(self) -> str:
        """Settings, for ``print``."""
        what = f"{self.num_inducing}, nu={self.nu:g}, {self.divergence}, {self.skr}"
        return what + (", unexplained variance dropped" if self.unexplained == "dropped" else "")
