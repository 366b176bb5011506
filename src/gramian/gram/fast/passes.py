"""Work over [data × inducing] matrices, each in one pass over memory, forward and backward.

These matrices are the large ones (a pixel a row), and a chain of element-wise operations reads and
writes them once an operation. Here a chain runs on a block of rows at a time, small enough to stay
in the cache, with the matrix products of the block between: memory sees one read and one write.
The gradients are written out for the same reason. They need no compiler, and are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_BYTES = 2**21
"""Small enough for the blocks of a few operands to share the cache of two cores."""


def fits_one_block(matrix: Float[Tensor, "N P"]) -> bool:
    """Whether to take all rows at once: also off the CPU and in an export."""
    if matrix.device.type != "cpu" or torch.compiler.is_exporting():
        return True
    return matrix.numel() * matrix.element_size() <= BLOCK_BYTES


def row_blocks(matrix: Float[Tensor, "N P"]) -> Iterator[slice]:
    """Slices of rows."""
    if fits_one_block(matrix):
        yield slice(None)
        return
    rows = max(1, BLOCK_BYTES // (matrix.shape[1] * matrix.element_size()))
    for start in range(0, len(matrix), rows):
        yield slice(start, start + rows)


def _empty_like(matrix: Float[Tensor, "N P"]) -> Float[Tensor, "N P"]:
    """To be written into: compiled code can do that row by row only."""
    compiled = torch.compiler.is_compiling()
    layout = torch.contiguous_format if compiled else torch.preserve_format
    return torch.empty_like(matrix, memory_format=layout)


def _write(
    columns: Float[Tensor, "N P"], function: Callable[..., Tensor], *arguments: Tensor
) -> None:
    """Write function(*arguments) into some columns of a matrix; compiled code has to copy it."""
    if torch.compiler.is_compiling():
        columns.copy_(function(*arguments))
    else:
        function(*arguments, out=columns)


def squared_norms(rows: Float[Tensor, "N P"]) -> Float[Tensor, " N"]:
    """|x|² of each row, without writing the squares."""
    return torch.linalg.vector_norm(rows, dim=1).square_()


def normalized_gaussian(
    c: Float[Tensor, "N P"],
    x: Float[Tensor, " N"],
    y: Float[Tensor, " P"],
    w: Float[Tensor, ""],
    b: Float[Tensor, ""],
    beta: Float[Tensor, ""],
) -> Float[Tensor, "N P"]:
    """w·s·exp(β(c/s − 1)) + b with s_np = √(x_n y_p).

    Of T = dK ∘ (K − b) and S = T(1 − βc/s) the gradients are: dc = βT/s; dx = Σ_p S / 2x, and dy
    likewise; dw = ΣT / w; db = ΣdK; dβ = ΣT(c/s − 1) = (ΣT − ΣS)/β − ΣT.
    """
    K: Tensor = _NormalizedGaussian.apply(c, x, y, w, b, beta)  # type: ignore[no-untyped-call]
    return K


def roots(g: Float[Tensor, " N"]) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """√g and 1/√g, finite for g = 0."""
    root = g.clamp_min(torch.finfo(g.dtype).tiny).sqrt()
    return root, root.reciprocal()


MOST = 40.0  # e^40 and e^−40, times anything usual, are numbers of float32


def split_decay(beta: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """e^−β as (e^−β₁, β₂) with β₁ + β₂ = β: a factor that is not 0, and what is left."""
    part = beta.clamp_max(MOST)
    return (-part).exp(), beta - part


def gaussian_rows(
    c: Float[Tensor, "N P"],
    root: Float[Tensor, " N"],
    r: Float[Tensor, " N"],
    q: Float[Tensor, " P"],
    column: Float[Tensor, " P"],
    b: Float[Tensor, "..."],
    less: Float[Tensor, "..."],
) -> Float[Tensor, "N P"]:
    """root ∘ exp(r q ∘ c − less) ∘ column + b, by rows and columns."""
    log_root, r = (root.log() - less)[:, None], r[:, None]
    K = _empty_like(c)
    for rows in row_blocks(c):
        k = torch.mul(c[rows], r[rows], out=K[rows])
        torch.addcmul(log_root[rows], k, q, out=k).exp_()
        torch.addcmul(b, k, column, out=k)
    return K


class _NormalizedGaussian(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, c: Tensor, x: Tensor, y: Tensor, w: Tensor, b: Tensor, beta: Tensor
    ) -> Tensor:
        (root, r), (root_y, q) = roots(x), roots(y)
        decay, less = split_decay(beta)
        K = gaussian_rows(c, root, r, beta * q, w * root_y * decay, b, less)
        ctx.save_for_backward(c, K, r, q, w, b, beta)
        return K

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dK: Tensor) -> tuple[Tensor | None, ...]:
        c, K, r, q, w, b, beta = ctx.saved_tensors
        dc, sums, steep = _empty_like(c), torch.empty_like(r), beta * q
        ones, rows_of_ones = torch.ones_like(q), torch.ones_like(r)
        sum_T, column_sums, db = w.new_zeros(()), torch.zeros_like(q), w.new_zeros(())
        for rows in row_blocks(c):
            T = torch.sub(K[rows], b).mul_(dK[rows])
            d = torch.mul(T, r[rows, None], out=dc[rows]).mul_(steep)
            sum_T += T.sum()
            db += dK[rows].sum()
            S = T.addcmul_(d, c[rows], value=-1)
            torch.mv(S, ones, out=sums[rows])
            column_sums.addmv_(S.mT, rows_of_ones[rows])
        dbeta = (sum_T - sums.sum()) / beta - sum_T
        dx, dy = sums.mul_(r.square()).div_(2), column_sums * q.square() / 2
        return dc, dx, dy, sum_T / w, db, dbeta


def project(
    X: Float[Tensor, "N P"], R: Float[Tensor, "P columns"], less: bool = True
) -> tuple[Float[Tensor, "N columns"], Float[Tensor, " N"]]:
    """U = X R, and |u|² of each row, ``less`` |x|².

    With Z = dU + 2 de ∘ U the gradients are dX = Z Rᵀ, less 2 de ∘ X, and dR = Xᵀ Z.
    """
    U, e = _Project.apply(X, R, less)  # type: ignore[no-untyped-call]
    return U, e


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, R: Tensor, less: bool) -> tuple[Tensor, Tensor]:
        U, e = X.new_empty(len(X), R.shape[1]), X.new_empty(len(X))
        for rows in row_blocks(X):
            torch.mm(X[rows], R, out=U[rows])
            e[rows] = squared_norms(U[rows])
            if less:
                e[rows] -= squared_norms(X[rows])
        ctx.save_for_backward(X, R, U)
        ctx.less = less
        return U, e

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dU: Tensor, de: Tensor) -> tuple[Tensor, Tensor, None]:
        X, R, U = ctx.saved_tensors
        dX, dR = _empty_like(X), torch.zeros_like(R)
        twice, minus_twice = 2 * de[:, None], -2 * de[:, None]
        for rows in row_blocks(X):
            Z = torch.addcmul(dU[rows], U[rows], twice[rows])
            if ctx.less:
                torch.mul(X[rows], minus_twice[rows], out=dX[rows]).addmm_(Z, R.mT)
            else:
                torch.mm(Z, R.mT, out=dX[rows])
            dR.addmm_(X[rows].mT, Z)
        return dX, dR, None


def cross(
    U: Float[Tensor, "N columns"],
    W: Float[Tensor, "P gamma"],
    tail: Float[Tensor, " scale"] | None = None,
    skip: Float[Tensor, "N P"] | None = None,
    skip_weight: float = 1.0,
) -> Float[Tensor, "N P"]:
    """U_γ Wᵀ + U_P ∘ tail + skip_weight · skip, where U = [U_γ U_P]; U_P only with a tail."""
    G: Tensor = _Cross.apply(U, W, tail, skip, skip_weight)  # type: ignore[no-untyped-call]
    return G


class _Cross(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        U: Tensor,
        W: Tensor,
        tail: Tensor | None,
        skip: Tensor | None,
        skip_weight: float,
    ) -> Tensor:
        P, gamma = W.shape
        G = U.new_empty(len(U), P)
        for rows in row_blocks(G):
            g, u = G[rows], U[rows]
            if tail is not None:
                torch.mul(u[:, gamma:], tail, out=g)
                if skip is not None:
                    g.add_(skip[rows], alpha=skip_weight)
            elif skip is not None:
                torch.mul(skip[rows], skip_weight, out=g)
            else:
                g.zero_()
            g.addmm_(u[:, :gamma], W.mT)
        ctx.save_for_backward(U, W, tail)
        ctx.skip_weight = None if skip is None else skip_weight
        return G

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dG: Tensor) -> tuple[Tensor | None, ...]:
        U, W, tail = ctx.saved_tensors
        gamma = W.shape[1]
        dU, dW = _empty_like(U), torch.zeros_like(W)
        dtail = None if tail is None else W.new_zeros(len(W))
        for rows in row_blocks(dG):
            d, u, du = dG[rows], U[rows], dU[rows]
            _write(du[:, :gamma], torch.mm, d, W)
            dW.addmm_(d.mT, u[:, :gamma])
            if tail is not None and dtail is not None:
                _write(du[:, gamma:], torch.mul, d, tail)
                dtail += (d * u[:, gamma:]).sum(0)
        if tail is not None and dtail is not None and len(tail) == 1:
            dtail = dtail.sum(0, keepdim=True)
        dskip = None if ctx.skip_weight is None else ctx.skip_weight * dG
        return dU, dW, dtail, dskip, None


def translate(
    G: Float[Tensor, "N P"], a: Float[Tensor, " P"], shift: Float[Tensor, " P"]
) -> tuple[Float[Tensor, "N P"], Float[Tensor, " N"]]:
    """G − d 1ᵀ + 1 shiftᵀ, and d = G a.

    With T for the first result and r = dd − dT 1 the gradients are dG = dT + r aᵀ, da = Gᵀ r and
    dshift = dTᵀ 1.
    """
    T, d = _Translate.apply(G, a, shift)  # type: ignore[no-untyped-call]
    return T, d


class _Translate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, G: Tensor, a: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        T, d = _empty_like(G), G.new_empty(len(G))
        for rows in row_blocks(G):
            d[rows] = G[rows] @ a
            torch.sub(G[rows], d[rows, None], out=T[rows]).add_(shift)
        ctx.save_for_backward(G, a)
        return T, d

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dT: Tensor, dd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        G, a = ctx.saved_tensors
        dG, da, dshift = _empty_like(G), torch.zeros_like(a), torch.zeros_like(a)
        for rows in row_blocks(G):
            r = dd[rows] - dT[rows].sum(1)
            torch.addcmul(dT[rows], r[:, None], a, out=dG[rows])
            da.addmv_(G[rows].mT, r)
            dshift += dT[rows].sum(0)
        return dG, da, dshift


def condition_diagonal(
    Y: Float[Tensor, "N P"],
    spread: Float[Tensor, " P"],
    product: Float[Tensor, "P Q"],
    skip: Float[Tensor, "N Q"] | None = None,
    skip_weight: float = 1.0,
) -> tuple[Float[Tensor, "N Q"], Float[Tensor, " N"]]:
    """Y · product + skip_weight · skip, and Σ_p spread_p y_p² of each row. Without gradients."""
    if fits_one_block(Y):
        G = Y @ product if skip is None else torch.addmm(skip, Y, product, beta=skip_weight)
        return G, Y.square() @ spread
    G, e = Y.new_empty(len(Y), product.shape[1]), Y.new_empty(len(Y))
    for rows in row_blocks(Y):
        torch.mv(Y[rows].square(), spread, out=e[rows])
        if skip is None:
            torch.mm(Y[rows], product, out=G[rows])
        else:
            torch.addmm(skip[rows], Y[rows], product, beta=skip_weight, out=G[rows])
    return G, e
