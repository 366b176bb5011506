"""Centring: the features of a Gram matrix less a learned point, before a kernel of their angles."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import GramBlocks
from gramian.gram.fast.passes import translate
from gramian.nn.parameters import start_at

FLOOR = 8
"""Times the precision of a number: below this share of |φ|² + |c|², |φ − c|² is rounding."""

UNIT = 4
"""√P of the narrowest model that it was chosen with: there a and raw_weights are the same."""


@dataclass(frozen=True, slots=True)
class CentredState:
    """What centring works out from the inducing points alone."""

    ii: Float[Tensor, "P P"]  # after it
    b: Float[Tensor, " P"]  # G_ii a: the inducing points with c
    m: Float[Tensor, ""]  # aᵀ G_ii a = |c|²


class Centre(nn.Module):
    """φ → φ − c for all features φ, where c = Σ_p a_p φ_p is a learned mixture of inducing points.

        ii → G_ii − b 1ᵀ − 1 bᵀ + m,  ti → G_ti − d 1ᵀ − 1 bᵀ + m,  tt → g_tt − 2 d + m,
        with b = G_ii a, m = aᵀ b and d = G_ti a

    A kernel of angles sees little where all features share a large part, which positive kernels
    give them. This takes it away, as the mean of a network's batch normalisation does, but as a
    parameter: no prediction depends on a batch. a starts at 1/(P + 1), nearly the mean of the
    inducing points; the exact mean would make the centred G_ii singular. a = 4 raw_weights / √P, so
    that one learning rate moves c as far with many inducing points as with few; the 4 is a choice.

    Args:
        num_inducing: P.
    """

    def __init__(self, num_inducing: int) -> None:
        super().__init__()
        P = num_inducing
        self.raw_weights = start_at(math.sqrt(P) / UNIT / (P + 1), P)

    @property
    def weights(self) -> Float[Tensor, " P"]:
        """a."""
        return self.raw_weights * (UNIT / math.sqrt(len(self.raw_weights)))

    def inducing(self, G_ii: Float[Tensor, "P P"]) -> CentredState:
        """The inducing block, and what the data need of it."""
        a = self.weights
        b = G_ii @ a
        m = a @ b
        return CentredState(G_ii - b[:, None] - b + m, b, m)

    def data(self, gram: GramBlocks, state: CentredState) -> GramBlocks:
        """The data blocks. |φ − c|² is kept above what rounding makes of it."""
        flat = gram.flat()
        ti, d = translate(flat.ti, self.weights, state.m - state.b)
        return GramBlocks(state.ii, ti, self.squares(flat.tt_diag, d, state.m)).shaped_like(gram)

    @staticmethod
    def squares(
        tt_diag: Float[Tensor, "*shape"], d: Float[Tensor, "*shape"], m: Float[Tensor, ""]
    ) -> Float[Tensor, "*shape"]:
        """|φ − c|² = |φ|² − 2 φ·c + |c|², but not below the rounding of the terms."""
        floor = FLOOR * torch.finfo(tt_diag.dtype).eps * (tt_diag + m).detach()
        return torch.maximum(tt_diag - 2 * d + m, floor)

    def forward(self, gram: GramBlocks) -> GramBlocks:
        """All blocks."""
        return self.data(gram, self.inducing(gram.ii))

    def extra_repr(self) -> str:
        """Size, for ``print``."""
        return f"{len(self.raw_weights)}"
