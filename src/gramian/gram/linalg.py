"""Cholesky factors, triangular solves and condition numbers. No silent extra jitter anywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from gramian.gram.errors import NonFiniteError, NotPSDError, checks_are_deferred, within


def cholesky(matrix: Float[Tensor, "P P"], what: str) -> Float[Tensor, "P P"]:
    """Lower triangular L with L Lᵀ = ``matrix``; NotPSDError names ``what`` if there is none."""
    L, info = torch.linalg.cholesky_ex(matrix)
    if checks_are_deferred():
        return L.masked_fill(info != 0, math.nan)
    if info.item() != 0:
        raise NotPSDError(
            what,
            str(matrix.dtype).removeprefix("torch."),
            len(matrix),
            int(info.item()),
            smallest_eigenvalue(matrix),
        )
    return L


def cholesky_of_each(
    matrices: Float[Tensor, "layers P P"], paths: Sequence[str], what: str
) -> Float[Tensor, "layers P P"]:
    """The factors of several matrices together; the error names the path of the first without."""
    L, info = torch.linalg.cholesky_ex(matrices)
    if checks_are_deferred():
        return L.masked_fill((info != 0)[:, None, None], math.nan)
    if info.any():
        first = int(info.nonzero()[0])
        with within(paths[first]):
            cholesky(matrices[first], what)
    return L


def smallest_eigenvalue(matrix: Float[Tensor, "P P"]) -> float:
    """Smallest eigenvalue of the symmetric part, in float64; NaN if an entry is not finite."""
    exact = matrix.detach().double()
    if not exact.isfinite().all():
        return float("nan")
    return float(torch.linalg.eigvalsh((exact + exact.mT) / 2)[0])


def solve_lower(
    L: Float[Tensor, "*layers P P"], B: Float[Tensor, "*layers P N"]
) -> Float[Tensor, "*layers P N"]:
    """L⁻¹ B for lower triangular L."""
    return torch.linalg.solve_triangular(L, B, upper=False)


def solve_upper(
    L: Float[Tensor, "*layers P P"], B: Float[Tensor, "*layers P N"]
) -> Float[Tensor, "*layers P N"]:
    """L⁻ᵀ B for lower triangular L."""
    return torch.linalg.solve_triangular(L.mT, B, upper=True)


def solve_right(B: Float[Tensor, "N P"], U: Float[Tensor, "P P"]) -> Float[Tensor, "N P"]:
    """B U⁻¹ for upper triangular U."""
    return torch.linalg.solve_triangular(U, B, upper=True, left=False)


def condition_number(matrix: Float[Tensor, "P P"]) -> float:
    """2-norm condition number, in float64. Beyond about 1e16 it only measures round-off."""
    if not matrix.isfinite().all():
        raise NonFiniteError("the Gram matrix")
    return float(torch.linalg.cond(matrix.detach().double()))


def mean_and_std(
    values: Shaped[Tensor, "N C"], weights: Float[Tensor, " N"] | None = None
) -> tuple[Float[Tensor, " C"], Float[Tensor, " C"]]:
    """Mean and population deviation of each column, in float64; 1 where all values are equal.

    A row of weight 2 counts as two rows.
    """
    values = values.double()
    w = values.new_ones(len(values)) if weights is None else weights.to(values)
    there, share = w > 0, (w / w.sum())[:, None]
    mean = values[there][0] + (share * (values - values[there][0])).sum(0)
    std = (share * (values - mean).square()).sum(0).sqrt()
    equal = (values[there] == values[there][0]).all(0)
    return mean, torch.where(equal | (std == 0), 1.0, std)
