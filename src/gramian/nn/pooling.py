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

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import GramBlocks
from gramian.gram.linalg import cholesky, solve_lower


class SpatialMean(nn.Module):
    """ii = G_ii, ti = (1/S) Σ_r G_ti(r), tt = (1/S) Σ_r g_tt(r), with S pixels r.

    With mixing: ii = (1/S) Σ_r C_r G_ii C_rᵀ and ti = (1/S) Σ_r G_ti(r) C_rᵀ.

    Args:
        mixing_shape: (P_out, S, P_in) for a mixing C, or None.
    """

    def __init__(self, mixing_shape: tuple[int, int, int] | None = None) -> None:
        super().__init__()
        self.raw_mixing = _zeros(mixing_shape)

    def inducing(self, G_ii: Float[Tensor, "Pi Pi"]) -> Float[Tensor, "Po Po"]:
        """The inducing block after pooling."""
        if self.raw_mixing is None:
            return G_ii
        C = _mixing(self.raw_mixing)  # [Po, S, Pi]
        return (C @ G_ii).flatten(1) @ C.flatten(1).mT / C.shape[1]

    def data(self, gram: GramBlocks, pooled_ii: Float[Tensor, "Po Po"]) -> GramBlocks:
        """The data blocks after pooling."""
        ti, tt_diag = gram.ti.flatten(1, -2), gram.tt_diag.flatten(1)
        if self.raw_mixing is None:
            return GramBlocks(pooled_ii, ti.mean(1), tt_diag.mean(1))
        C = _mixing(self.raw_mixing)
        mixed = ti.flatten(1) @ C.flatten(1).mT / C.shape[1]
        return GramBlocks(pooled_ii, mixed, tt_diag.mean(1))

    def forward(self, gram: GramBlocks) -> GramBlocks:
        """Pool all blocks."""
        return self.data(gram, self.inducing(gram.ii))

    @torch.no_grad()
    def start_(self, generator: torch.Generator) -> None:
        """Draw start values of the mixing: standard normals."""
        if self.raw_mixing is not None:
            self.raw_mixing.normal_(generator=generator)


class NystromMean(nn.Module):
    """ti = m = (1/S) Σ_r G_ti(r), tt = m G_ii⁻¹ mᵀ + (1/S²) Σ_r (g_tt(r) − G_ti(r) G_ii⁻¹ G_it(r)).

    With mixing: ii = C G_ii Cᵀ and ti = m Cᵀ; tt as without.

    Args:
        mixing_shape: (P_out, P_in) for a mixing C, or None.
    """

    def __init__(self, mixing_shape: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.raw_mixing = _zeros(mixing_shape)

    def inducing(self, G_ii: Float[Tensor, "Pi Pi"]) -> Float[Tensor, "Po Po"]:
        """The inducing block after pooling."""
        if self.raw_mixing is None:
            return G_ii
        C = _mixing(self.raw_mixing)
        return C @ G_ii @ C.mT

    def data(self, gram: GramBlocks, pooled_ii: Float[Tensor, "Po Po"]) -> GramBlocks:
        """The data blocks after pooling."""
        ti, tt_diag = gram.ti.flatten(1, -2), gram.tt_diag.flatten(1)
        S = tt_diag.shape[1]
        m = ti.mean(1)
        L = cholesky(gram.ii, what="pooled G_ii")
        explained_mean = solve_lower(L, m.mT).square().sum(0)
        explained = solve_lower(L, ti.flatten(0, 1).mT).square().sum(0).view_as(tt_diag)
        g = explained_mean + (tt_diag - explained).sum(1) / S**2
        if self.raw_mixing is not None:
            m = m @ _mixing(self.raw_mixing).mT
        return GramBlocks(pooled_ii, m, g)

    def forward(self, gram: GramBlocks) -> GramBlocks:
        """Pool all blocks."""
        return self.data(gram, self.inducing(gram.ii))

    @torch.no_grad()
    def start_(self, generator: torch.Generator) -> None:
        """Draw start values of the mixing: standard normals."""
        if self.raw_mixing is not None:
            self.raw_mixing.normal_(generator=generator)


def _zeros(shape: tuple[int, ...] | None) -> nn.Parameter | None:
    return None if shape is None else nn.Parameter(torch.zeros(shape))


def _mixing(raw_mixing: Tensor) -> Tensor:
    """C = raw_mixing / √P_in."""
    return raw_mixing / math.sqrt(raw_mixing.shape[-1])
