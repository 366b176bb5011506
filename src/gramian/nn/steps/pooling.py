"""From one Gram matrix over pixels to one over images.

Algorithm 1 asks for the mean over all pairs of pixels, g = (1/S²) Σ_rs G_tt(r, s), but only the
diagonal of G_tt is carried along. Two answers, which share ii and ti:

* ``SpatialMean``, as published: g = (1/S) Σ_r g_tt(r), the kernel of one map-sized convolution
  with independent weights for each pixel. Never smaller than Algorithm 1's.
* ``NystromMean``: between pixels, the part of G_tt that the inducing points explain. Equal to
  Algorithm 1 if what they do not explain is independent from pixel to pixel.

``mixing_shape`` gives either a learned mixing C of the inducing points, as in KernelConv.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import GramBlocks
from gramian.gram.conditional import VarianceCheck
from gramian.gram.fast.congruence import congruence
from gramian.gram.linalg import cholesky, solve_lower
from gramian.gram.random import normals


@dataclass(frozen=True, slots=True)
class PooledState:
    """What a pooling has worked out from the inducing points alone."""

    ii: Float[Tensor, "Po Po"]  # after pooling
    inverse_factor: Float[Tensor, "Pi Pi"] | None = None  # L⁻¹, with G_ii = L Lᵀ before pooling


class Pooling(nn.Module, ABC):
    """The two halves of a pooling, and the mixing C = raw_mixing / √P_in if it has one."""

    raw_mixing: nn.Parameter | None

    def __init__(
        self,
        mixing_shape: tuple[int, ...] | None = None,
        variance_check: VarianceCheck = VarianceCheck(),
    ) -> None:
        super().__init__()
        self.variance_check = variance_check
        self.raw_mixing = None
        if mixing_shape is not None:
            self.raw_mixing = nn.Parameter(torch.zeros(mixing_shape))

    @property
    def mixing(self) -> Tensor | None:
        """C, or None."""
        if self.raw_mixing is None:
            return None
        return self.raw_mixing / math.sqrt(self.raw_mixing.shape[-1])

    @abstractmethod
    def inducing(self, G_ii: Float[Tensor, "Pi Pi"]) -> PooledState:
        """The inducing block after pooling, and what the data need of the one before it."""

    @abstractmethod
    def pool(
        self,
        ti: Float[Tensor, "B S Pi"],
        tt_diag: Float[Tensor, "B S"],
        inverse_factor: Float[Tensor, "Pi Pi"] | None,
    ) -> tuple[Float[Tensor, "B Po"], Float[Tensor, " B"]]:
        """The data blocks, from pixels to images; ``inverse_factor`` as in PooledState."""

    def data(self, gram: GramBlocks, state: PooledState) -> GramBlocks:
        """The data blocks after pooling."""
        ti, tt_diag = self.pool(
            gram.ti.flatten(1, -2), gram.tt_diag.flatten(1), state.inverse_factor
        )
        return GramBlocks(state.ii, ti, self.variance_check(tt_diag)[0])

    def forward(self, gram: GramBlocks) -> GramBlocks:
        """Pool all blocks."""
        return self.data(gram, self.inducing(gram.ii))

    @torch.no_grad()
    def start_(self, generator: torch.Generator) -> None:
        """Draw start values of the mixing: standard normals."""
        if self.raw_mixing is not None:
            self.raw_mixing.copy_(normals(self.raw_mixing.shape, generator, self.raw_mixing.dtype))


class SpatialMean(Pooling):
    """ii = G_ii, ti = (1/S) Σ_r G_ti(r), tt = (1/S) Σ_r g_tt(r), with S pixels r.

    With mixing: ii = (1/S) Σ_r C_r G_ii C_rᵀ and ti = (1/S) Σ_r G_ti(r) C_rᵀ.

    Args:
        mixing_shape: (P_out, S, P_in) for a mixing C, or None.
        variance_check: what to do about negative entries of tt.
    """

    def inducing(self, G_ii: Float[Tensor, "Pi Pi"]) -> PooledState:
        """The inducing block after pooling."""
        C = self.mixing  # [Po, S, Pi]
        if C is None:
            return PooledState(G_ii)
        return PooledState(congruence(C, G_ii))

    def pool(
        self,
        ti: Float[Tensor, "B S Pi"],
        tt_diag: Float[Tensor, "B S"],
        inverse_factor: Float[Tensor, "Pi Pi"] | None,
    ) -> tuple[Float[Tensor, "B Po"], Float[Tensor, " B"]]:
        """Means over the pixels, or their mixing."""
        C = self.mixing
        if C is None:
            return ti.mean(1), tt_diag.mean(1)
        return ti.flatten(1) @ C.flatten(1).mT / C.shape[1], tt_diag.mean(1)


class NystromMean(Pooling):
    """ti = m = (1/S) Σ_r G_ti(r), tt = m G_ii⁻¹ mᵀ + (1/S²) Σ_r (g_tt(r) − G_ti(r) G_ii⁻¹ G_it(r)).

    With mixing: ii = C G_ii Cᵀ and ti = m Cᵀ; tt as without.

    Args:
        mixing_shape: (P_out, P_in) for a mixing C, or None.
        variance_check: what to do about negative entries of tt, which rounding can make.
    """

    def inducing(self, G_ii: Float[Tensor, "Pi Pi"]) -> PooledState:
        """The inducing block after pooling."""
        L = cholesky(G_ii, what="G_ii before pooling")
        eye = torch.eye(len(L), dtype=L.dtype, device=L.device)
        C = self.mixing
        return PooledState(G_ii if C is None else C @ G_ii @ C.mT, solve_lower(L, eye))

    def pool(
        self,
        ti: Float[Tensor, "B S Pi"],
        tt_diag: Float[Tensor, "B S"],
        inverse_factor: Float[Tensor, "Pi Pi"] | None,
    ) -> tuple[Float[Tensor, "B Po"], Float[Tensor, " B"]]:
        """The mean of ti, and of G_tt what the inducing points explain of other pixels."""
        assert inverse_factor is not None
        whitener = inverse_factor.mT
        S, m = tt_diag.shape[1], ti.mean(1)
        unexplained = tt_diag - (ti @ whitener).square().sum(-1)
        g = (m @ whitener).square().sum(-1) + unexplained.sum(1) / S**2
        C = self.mixing
        return m if C is None else m @ C.mT, g
