"""The inducing points' large products, shared by processes that all have the same matrices.

Each process computes its share of the entries, and a sum over the processes makes the whole of them
in each: to add zeros is exact. The processes' losses differ, so a gradient is first summed over
them, and then each process works out its share of what follows from it. What it passes on to
parameters is a part, too: the parts of all processes add up to what one process would have of the
sum of the losses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from gramian.gram.fast.congruence import congruence
from gramian.gram.linalg import solve_lower, solve_upper

WORTH_SHARING = 512
"""Rows of a matrix from which on a product is shared; smaller ones are computed by all."""


@dataclass(frozen=True)
class Split:
    """One process among those that share products.

    Args:
        rank: which.
        world_size: of how many.
        sum_: the sum of a tensor over the processes, in place of it.
        batch: data points of a process in most steps: what is decided by it, all decide alike.
    """

    rank: int
    world_size: int
    sum_: Callable[[Tensor], Tensor]
    batch: int = 1

    def bounds(self, count: int) -> tuple[int, int]:
        """This process's share of ``count`` columns: from, to."""
        return self.rank * count // self.world_size, (self.rank + 1) * count // self.world_size

    def rows(self, count: int) -> list[tuple[int, int]]:
        """This process's rows of a triangle: a block of short ones and a block of long ones."""
        blocks = 2 * self.world_size
        mine = (self.rank, blocks - 1 - self.rank)
        return [(block * count // blocks, (block + 1) * count // blocks) for block in mine]


def is_shared(rows: int, split: Split | None) -> bool:
    """Whether a product with a matrix of so many rows is shared."""
    return split is not None and split.world_size > 1 and rows >= WORTH_SHARING


def shared_congruence(
    C: Float[Tensor, "Po D Pi"], Phi: Float[Tensor, "Pi Pi"], split: Split | None
) -> Float[Tensor, "Po Po"]:
    """``congruence``, K = (1/D) Σ_d C_d Φ C_dᵀ, by rows of C."""
    return (
        _apply(_SplitCongruence, C, Phi, split) if is_shared(len(C), split) else congruence(C, Phi)
    )


def shared_solve_lower(
    L: Float[Tensor, "P P"], B: Float[Tensor, "P N"], split: Split | None
) -> Float[Tensor, "P N"]:
    """``solve_lower``, X = L⁻¹ B for lower triangular L, by columns of B."""
    return _apply(_SplitSolveLower, L, B, split) if is_shared(len(L), split) else solve_lower(L, B)


def shared_sum(part: Tensor, split: Split) -> Tensor:
    """The sum of what all processes have."""
    return _apply(_SplitSum, part, split)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # processes meet inside
def _apply(function: Any, *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result


class _SplitCongruence(torch.autograd.Function):
    """With S = dK + dKᵀ: dC = S C Φ / D and dΦ = Σ_d C_dᵀ S C_d / 2D."""

    @staticmethod
    def forward(ctx: Any, C: Tensor, Phi: Tensor, split: Split) -> Tensor:
        C = C.contiguous()
        ctx.save_for_backward(C, Phi)
        ctx.split = split
        K = C.new_zeros(len(C), len(C))
        for start, stop in split.rows(len(C)):
            C_Phi = (C[start:stop].flatten(0, 1) @ Phi).view_as(C[start:stop])
            K[start:stop, :stop] = C_Phi.flatten(1) @ C[:stop].flatten(1).mT / C.shape[1]
        lower = split.sum_(K).tril()
        return lower + lower.tril(-1).mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dK: Tensor) -> tuple[Tensor, Tensor, None]:
        C, Phi = ctx.saved_tensors
        dK = ctx.split.sum_(dK.clone(memory_format=torch.contiguous_format))
        S = (dK + dK.mT).div_(C.shape[1])
        dC, dPhi = torch.zeros_like(C), torch.zeros_like(Phi)
        for start, stop in ctx.split.rows(len(C)):
            S_C = (S[start:stop] @ C.flatten(1)).view(-1, len(Phi))
            dC[start:stop] = (S_C @ Phi).view_as(dC[start:stop])
            dPhi.addmm_(C[start:stop].flatten(0, 1).mT, S_C, alpha=0.5)
        return dC, dPhi, None


class _SplitSolveLower(torch.autograd.Function):
    """dB = L⁻ᵀ dX and dL = −tril(dB Xᵀ)."""

    @staticmethod
    def forward(ctx: Any, L: Tensor, B: Tensor, split: Split) -> Tensor:
        X = torch.zeros_like(B, memory_format=torch.contiguous_format)
        start, stop = split.bounds(B.shape[1])
        X[:, start:stop] = solve_lower(L, B[:, start:stop])
        split.sum_(X)
        ctx.save_for_backward(L, X)
        ctx.split = split
        return X

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dX: Tensor) -> tuple[Tensor, Tensor, None]:
        L, X = ctx.saved_tensors
        dX = ctx.split.sum_(dX.clone(memory_format=torch.contiguous_format))
        start, stop = ctx.split.bounds(X.shape[1])
        mine = solve_upper(L, dX[:, start:stop])
        dB = torch.zeros_like(X)
        dB[:, start:stop] = mine
        return (mine @ X[:, start:stop].mT).tril().neg(), dB, None


class _SplitSum(torch.autograd.Function):
    """Every process's loss has the whole sum in it, so its gradients are summed, too."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, split: Split) -> Tensor:
        ctx.split = split
        return split.sum_(part.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.split.sum_(gradient.clone()), None
