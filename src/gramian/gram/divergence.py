"""Three measures of how far N(0, G) is from N(0, K): the pull of a Gram matrix to its kernel.

Let M = L_G⁻¹ K L_G⁻ᵀ with G = L_G L_Gᵀ, and λ its eigenvalues (those of G⁻¹K, too). Then

    KL(N(0,G) ‖ N(0,K)) = ½ (tr K⁻¹G − logdet K⁻¹G − P) = ½ Σ (1/λ + log λ − 1).

With λ = 1 + ε, 1/λ = 1 − ε + ε² − ε³ + … and log λ = ε − ε²/2 + ε³/3 − …, so each term of the
sum, with its factor ½, is ¼ ε² − ⅓ ε³ + …, and

    KL = ¼ ‖M − I‖²_F + O(‖M − I‖³),

because M is symmetric and its Frobenius norm is that of its eigenvalues: this is
``taylor_symmetric``. The published objective has ``taylor`` = ¼ ‖G⁻¹K − I‖²_F instead. G⁻¹K is
similar to M but not symmetric, so by Schur's inequality ``taylor`` ≥ ``taylor_symmetric``, with
equality if G and K commute: a stronger pull, of the same order. Both vanish exactly at G = K.
(Section 3.2 of the paper prints the KL without its factor ½; the published runs have it.)
"""

from __future__ import annotations

from typing import Literal, assert_never

import torch
from jaxtyping import Float
from torch import Tensor

from gramian.gram.fast.split import Split, is_shared, shared_sum
from gramian.gram.linalg import solve_lower, solve_upper

Divergence = Literal["exact", "taylor", "taylor_symmetric"]


def gaussian_divergence(
    kind: Divergence,
    K: Float[Tensor, "*layers P P"],
    L_K: Float[Tensor, "*layers P P"],
    L_G: Float[Tensor, "*layers P P"],
    split: Split | None = None,
) -> Float[Tensor, "*layers"]:
    """D(N(0,G) ‖ N(0,K)) for G = L_G L_Gᵀ and K = L_K L_Kᵀ, as the module's text defines it.

    The norms are sums over columns, which processes may share.
    """
    P = K.shape[-1]
    start, stop = (0, P)
    if split is not None and is_shared(P, split) and kind != "taylor_symmetric":
        start, stop = split.bounds(P)
    match kind:
        case "exact":
            norm = _sum_of_squares(solve_lower(L_K, L_G[..., start:stop]))
        case "taylor":
            norm = _from_identity(solve_upper(L_G, solve_lower(L_G, K[..., start:stop])), start)
        case "taylor_symmetric":
            norm = _from_identity(solve_lower(L_G, solve_lower(L_G, K).mT))
        case _:
            assert_never(kind)
    if split is not None and stop - start < P:
        norm = shared_sum(norm, split)
    if kind == "exact":
        return 0.5 * (norm - P) - (_log_diagonal(L_G) - _log_diagonal(L_K))
    return 0.25 * norm


def _from_identity(M: Float[Tensor, "*layers P N"], start: int = 0) -> Float[Tensor, "*layers"]:
    """‖M − I‖²_F, of the columns from ``start`` on that there are."""
    P, N = M.shape[-2:]
    eye = torch.eye(P, dtype=M.dtype, device=M.device)
    return _sum_of_squares(M - eye[:, start : start + N])


def _sum_of_squares(M: Float[Tensor, "*layers P N"]) -> Float[Tensor, "*layers"]:
    return M.square().sum((-2, -1))


def _log_diagonal(L: Float[Tensor, "*layers P P"]) -> Float[Tensor, "*layers"]:
    """Half of logdet L Lᵀ."""
    return L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
