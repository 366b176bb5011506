"""Muon: steps of the mixing matrices in which every direction has the same length."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

QUINTIC = (3.4445, -4.7750, 2.0315)
"""aσ + bσ³ + cσ⁵ takes singular values in (0, 1] to 0.7 … 1.2 in five turns (Jordan 2024)."""


class Muon(torch.optim.Adam):
    """Momentum made orthogonal for the groups with ``matrices=True``; Adam for all others.

        M ← μ M + (1 − μ) g,   step = −lr · 0.2 √max(m, n) · orthogonal((1 − μ) g + μ M)

    for a parameter as the m × n matrix of its first dimension against the others. The factor gives
    the entries of a step the size that Adam's have, so that one learning rate serves both.
    (``torch.optim.Muon`` computes in bfloat16, which kills the process on some CPUs, and takes
    matrices only.)

    Args:
        groups: of parameters; ``matrices=True`` marks those that are matrices.
        lr: of all groups that have none of their own.
        betas: of Adam.
        momentum: μ.
        weight_decay: share of the matrices that a step of lr 1 takes away (decoupled).
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        momentum: float,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(groups, lr, betas, fused=True)
        for group in self.param_groups:
            if group.setdefault("matrices", False):
                group.update(momentum=momentum, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """The matrices, then Adam: it leaves out what has no gradient any more."""
        for group in self.param_groups:
            if group["matrices"]:
                for matrix in group["params"]:
                    self._turn(matrix, group)
        loss: float | None = super().step(closure)
        return loss

    def _turn(self, matrix: Tensor, group: dict[str, Any]) -> None:
        if matrix.grad is None:
            return
        state, mu, lr = self.state[matrix], group["momentum"], group["lr"]
        if not state:
            state["step"], state["momentum"] = torch.zeros(()), torch.zeros_like(matrix)
        state["step"] += 1
        M = state["momentum"].lerp_(matrix.grad, 1 - mu)
        direction = matrix.grad.lerp(M, mu).flatten(1)
        size = 0.2 * math.sqrt(max(direction.shape))
        matrix.mul_(1 - lr * group["weight_decay"])
        matrix.sub_(orthogonal(direction).view_as(matrix), alpha=lr * size)
        matrix.grad = None


def orthogonal(M: Float[Tensor, "m n"], turns: int = 5) -> Float[Tensor, "m n"]:
    """M with its singular values brought near 1, by Newton and Schulz's iteration.

    A turn X ← (a + bA + cA²) X, A = X Xᵀ, only multiplies X from the left, so the turns are made on
    the smaller of its Gram matrices and X is met twice.
    """
    if M.shape[0] > M.shape[1]:
        return orthogonal(M.mT, turns).mT
    X = M / torch.linalg.matrix_norm(M).clamp_min(torch.finfo(M.dtype).tiny)
    A, Q = X @ X.mT, torch.eye(len(X), dtype=X.dtype, device=X.device)
    a, b, c = QUINTIC
    for _ in range(turns):
        F = torch.addmm(A, A, A, beta=b, alpha=c)
        F.diagonal().add_(a)
        A, Q = F @ A @ F, F @ Q
    return Q @ X
