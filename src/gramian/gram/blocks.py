"""The two values that flow through a deep kernel machine: Gram blocks, then marginals."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, slots=True)
class GramBlocks:
    """Blocks of one Gram (or kernel) matrix over inducing points i and data points t.

    A data point is a pixel of an image, ``space`` = (H, W), or a row of a table, ``space`` = ().
    Of G_tt only the diagonal is ever needed, because the likelihood treats the data one by one.
    """

    ii: Float[Tensor, "Pi Pi"]  # G_ii: inducing × inducing
    ti: Float[Tensor, "B *space Pi"]  # G_ti: data × inducing, channels last
    tt_diag: Float[Tensor, "B *space"]  # diag(G_tt)

    def flat(self) -> GramBlocks:
        """Fold batch and space into one axis, so that matrix code sees matrices."""
        return GramBlocks(self.ii, self.ti.flatten(0, -2), self.tt_diag.flatten())

    def shaped_like(self, other: GramBlocks) -> GramBlocks:
        """Undo ``flat``: take batch and space from ``other``, the inducing points from self."""
        shape = other.tt_diag.shape
        return GramBlocks(self.ii, self.ti.reshape(*shape, -1), self.tt_diag.reshape(shape))


@dataclass(frozen=True, slots=True)
class Marginals:
    """q(f) of each data point: independent Gaussians, as a rule of one variance for all outputs."""

    mean: Float[Tensor, "B C"]
    var: Float[Tensor, "B #C"]

    def split(self, size: int) -> list[Marginals]:
        """In batches of ``size`` data points, the last one with what is left."""
        pairs = zip(self.mean.split(size), self.var.split(size), strict=True)
        return [Marginals(mean, var) for mean, var in pairs]
