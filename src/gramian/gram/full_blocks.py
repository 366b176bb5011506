"""Gram blocks of a model without inducing points: every training point, every pair of pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gramian.gram.blocks import GramBlocks
from gramian.gram.conditional import Conditional


@dataclass(frozen=True, slots=True)
class FullBlocks:
    """Blocks of one Gram (or kernel) matrix over N = P·S training points i and new data t.

    A point is a pixel of an image, of which there are S, or a row of a table, S = 1. Pixels of one
    new image meet each other, which pooling needs; those of two new images never do.
    """

    ii: Float[Tensor, "N N"]  # G_ii: training × training
    ti: Float[Tensor, "B S N"]  # G_ti: new × training
    tt: Float[Tensor, "B S S"]  # G_tt: within each new image


@dataclass(frozen=True)
class PairConvolution:
    """Γ(K)_{ir,js} = (1/D) Σ_d K_{i(u·r+d),j(u·s+d)}, stride u, zeros outside (Eq. conv_limit1).

    Of all blocks alike, also of tt: the published model, which carries only the diagonal of tt,
    takes there the mean over the pixels inside the image. Γ(K) is positive definite if K is: it is
    a sum of congruences, of which that of d = 0 is K/D, or with a stride a principal block of it.

    Args:
        space: (H, W) of the maps that come in.
        filter_size: f, odd; D = f².
        stride: u.
    """

    space: tuple[int, int]
    filter_size: int = 3
    stride: int = 1

    @property
    def output_space(self) -> tuple[int, int]:
        """(H, W) of the maps that go out."""
        H, W = self.space
        return -(-H // self.stride), -(-W // self.stride)

    def inducing(self, K_ii: Float[Tensor, "N N"]) -> Float[Tensor, "n n"]:
        """Γ(K)_ii."""
        pairs = self._convolve(K_ii.reshape(-1, *self.space, len(K_ii) // self._size, *self.space))
        return pairs.flatten(3).flatten(0, 2)

    def data(self, K: FullBlocks, ii: Float[Tensor, "n n"]) -> FullBlocks:
        """Γ(K)_ti and Γ(K)_tt beside Γ(K)_ii = ``ii``."""
        B, N = K.ti.shape[0], len(K.ii)
        ti = self._convolve(K.ti.reshape(B, *self.space, N // self._size, *self.space))
        tt = self._convolve(K.tt.reshape(B, *self.space, 1, *self.space))
        return FullBlocks(ii, ti.flatten(3).flatten(1, 2), tt.flatten(3).flatten(1, 2))

    @property
    def _size(self) -> int:
        return self.space[0] * self.space[1]

    def _convolve(self, K: Float[Tensor, "A H W B H W"]) -> Float[Tensor, "A h w B h w"]:
        """A square filter is one along the columns after one along the rows."""
        for dims in ((1, 4), (2, 5)):
            K = _PairSums.apply(K, dims, self.filter_size, self.stride)  # type: ignore[no-untyped-call]
        return K / self.filter_size**2


def pool_inducing(G_ii: Float[Tensor, "N N"], num_pixels: int) -> Float[Tensor, "P P"]:
    """(1/S²) Σ_rs G_{ir,js} of each two training images (Algorithm 1)."""
    P = len(G_ii) // num_pixels
    return G_ii.reshape(P, num_pixels, P, num_pixels).mean((1, 3))


def pool_data(G: FullBlocks, ii: Float[Tensor, "P P"]) -> GramBlocks:
    """(1/S²) Σ_rs G_{tr,js} and (1/S²) Σ_rs G_{tr,ts}, beside the pooled training block ``ii``."""
    B, S, N = G.ti.shape
    ti = G.ti.reshape(B, S, len(ii), N // len(ii)).mean((1, 3))
    return GramBlocks(ii, ti, G.tt.mean((1, 2)))


def condition_full(K: FullBlocks, conditional: Conditional) -> FullBlocks:
    """G_ti = A G_ii and G_tt = A G_ii Aᵀ + K_tt − A K_it, A = K_ti K_ii⁻¹ (Eq. gram_ind_prop).

    As in ``Conditional``: with X = K_ti L_K⁻ᵀ and U = X L_K⁻¹ W̃, G_tt = K_tt − X Xᵀ + U Uᵀ.
    """
    X = conditional.whiten(K.ti.flatten(0, 1))
    U = X @ conditional.whitened_factor
    ti = conditional.cross(U).view_as(K.ti)
    X, U = X.view_as(K.ti), U.unflatten(0, K.ti.shape[:2])
    return FullBlocks(conditional.ii, ti, K.tt - X @ X.mT + U @ U.mT)


class _PairSums(Function):
    """Σ_d K[u·r + d, u·s + d] over d = −(f−1)/2 … (f−1)/2, r and s along two axes of one length.

    Its gradient adds each sum's to all of its terms.
    """

    @staticmethod
    def forward(ctx: Any, K: Tensor, dims: tuple[int, int], size: int, stride: int) -> Tensor:
        ctx.shape, ctx.settings = K.shape, (dims, size, stride)
        shape = list(K.shape)
        for dim in dims:
            shape[dim] = -(-shape[dim] // stride)
        sums = K.new_zeros(shape)
        for out, into in _shifts(K.shape, dims, size, stride):
            sums[out] += K[into]
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        dK = gradient.new_zeros(ctx.shape)
        for out, into in _shifts(ctx.shape, *ctx.settings):
            dK[into] += gradient[out]
        return dK, None, None, None


def _shifts(
    shape: tuple[int, ...], dims: tuple[int, int], size: int, stride: int
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """For each d the sums with a term inside the map, and where in the map those terms are."""
    length = shape[dims[0]]
    for d in range(-(size // 2), size // 2 + 1):
        first = -(min(d, 0) // stride)  # the least r ≥ 0 with u·r + d ≥ 0
        stop = (length - 1 - d) // stride + 1  # one more than the largest with u·r + d < length
        stop = min(stop, -(-length // stride))
        if first >= stop:
            continue
        out, into = [slice(None)] * len(shape), [slice(None)] * len(shape)
        for dim in dims:
            out[dim] = slice(first, stop)
            into[dim] = slice(stride * first + d, stride * (stop - 1) + d + 1, stride)
        yield tuple(out), tuple(into)
