"""K = (1/D) Σ_d C_d Φ C_dᵀ for symmetric Φ: the product that makes inducing patches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

WORTH_SPLITTING = 512
"""From this size on, only the lower blocks of a symmetric product are formed."""


def congruence(C: Float[Tensor, "Po D Pi"], Phi: Float[Tensor, "Pi Pi"]) -> Float[Tensor, "Po Po"]:
    """K, and for its gradient three products: with S = dK + dKᵀ,

    dC = S C Φ / D, which uses C Φ again, and dΦ = Σ_d C_dᵀ S C_d / 2D, symmetric like Φ.
    """
    K: Tensor = _Congruence.apply(C, Phi)  # type: ignore[no-untyped-call]
    return K


class _Congruence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, C: Tensor, Phi: Tensor) -> Tensor:
        C = C.contiguous()
        C_Phi = (C.flatten(0, 1) @ Phi).view_as(C)
        ctx.save_for_backward(C, C_Phi)
        return symmetric_product(C_Phi.flatten(1), C.flatten(1)).div_(C.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dK: Tensor) -> tuple[Tensor | None, Tensor | None]:
        C, C_Phi = ctx.saved_tensors
        S = (dK + dK.mT).div_(C.shape[1])
        dC = (S @ C_Phi.flatten(1)).view_as(C)
        S_C = (S @ C.flatten(1)).view_as(C)
        return dC, symmetric_product(C.flatten(0, 1).mT, S_C.flatten(0, 1).mT).div_(2)


def symmetric_product(A: Float[Tensor, "P N"], B: Float[Tensor, "P N"]) -> Float[Tensor, "P P"]:
    """A Bᵀ where that is known to be symmetric: large ones by their lower blocks, then mirrored."""
    P = len(A)
    if P < WORTH_SPLITTING:
        return A @ B.mT
    product = A.new_empty(P, P)
    for start, stop in pairwise(P * n // 4 for n in range(5)):
        torch.mm(A[start:stop], B[:stop].mT, out=product[start:stop, :stop])
        product[:start, start:stop] = product[start:stop, :start].mT
    return product
