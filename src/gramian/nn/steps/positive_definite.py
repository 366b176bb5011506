"""A learned positive definite matrix, by its Cholesky factor."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.linalg import cholesky


class PositiveDefinite(nn.Module):
    """G = L Lᵀ, L = (strictly lower part of V + diag(exp(diag V))) / √P for any square V.

    V is ``raw_factor``; its entries above the diagonal are not used. It starts at G = I.

    Args:
        size: P.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        log_root = torch.full((size,), 0.5 * math.log(size))
        self.raw_factor = nn.Parameter(torch.diag(log_root))

    @property
    def factor(self) -> Float[Tensor, "P P"]:
        """L."""
        V = self.raw_factor
        return (V.tril(-1) + V.diagonal().exp().diag()) / math.sqrt(len(V))

    @property
    def matrix(self) -> Float[Tensor, "P P"]:
        """G."""
        L = self.factor
        return L @ L.mT

    @torch.no_grad()
    def set_to_(self, matrix: Float[Tensor, "P P"], what: str = "matrix") -> None:
        """Make G equal to ``matrix``; NotPSDError names ``what`` if that is impossible."""
        L = math.sqrt(len(matrix)) * cholesky(matrix, what=what)
        self.raw_factor.copy_(L.tril(-1) + L.diagonal().log().diag())

    def extra_repr(self) -> str:
        """Size, for ``print``."""
        return f"{len(self.raw_factor)}"
