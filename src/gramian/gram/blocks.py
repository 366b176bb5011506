"""The two values that flow through a deep kernel machine: Gram blocks, then marginals."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, slots=True)
class GramBlocks:
    """Blocks of one Gram (or kernel) matrix over inducing points i and data points t.

        G = [[G_ii, G_it], [G_ti, G_tt]],  kept are G_ii, G_ti and g_tt = diag G_tt

    A data point is a pixel of an image, ``space`` = (H, W), or a row of a table, ``space`` = ().
    Of G_tt only the diagonal is ever needed, because the likelihood treats the data one by one.

    Attributes:
        ii: G_ii, inducing × inducing, [P, P].
        ti: G_ti, data × inducing, channels last, [B, H, W, P] or [B, P].
        tt_diag: g_tt, [B, H, W] or [B].

    Example:
        >>> import torch
        >>> from gramian import GramBlocks
        >>> images = GramBlocks(torch.eye(5), torch.zeros(2, 8, 8, 5), torch.ones(2, 8, 8))
        >>> images.flat().ti.shape  # 2 · 8 · 8 pixels, 5 inducing points
        torch.Size([128, 5])
    """

    ii: Float[Tensor, "Pi Pi"]
    ti: Float[Tensor, "B *space Pi"]
    tt_diag: Float[Tensor, "B *space"]

    def flat(self) -> GramBlocks:
        """Fold batch and space into one axis, so that matrix code sees matrices."""
        return GramBlocks(self.ii, self.ti.flatten(0, -2), self.tt_diag.flatten())

    def shaped_like(self, other: GramBlocks) -> GramBlocks:
        """Undo ``flat``: take batch and space from ``other``, the inducing points from self."""
        shape = other.tt_diag.shape
        return GramBlocks(self.ii, self.ti.reshape(*shape, -1), self.tt_diag.reshape(shape))


@dataclass(frozen=True, slots=True)
class Marginals:
    """q(f) of each data point: independent Gaussians, as a rule of one variance for all outputs.

        q(f_tc) = N(mean_tc, var_t)

    Attributes:
        mean: [B, C].
        var: [B, 1], or [B, C] with a variance for each output.

    Example:
        >>> import torch
        >>> from gramian import Marginals
        >>> q = Marginals(mean=torch.zeros(5, 10), var=torch.ones(5, 1))
        >>> [len(part.mean) for part in q.split(2)]
        [2, 2, 1]
    """

    mean: Float[Tensor, "B C"]
    var: Float[Tensor, "B #C"]

    def split(self, size: int) -> list[Marginals]:
        """In batches of ``size`` data points, the last one with what is left."""
        pairs = zip(self.mean.split(size), self.var.split(size), strict=True)
        return [Marginals(mean, var) for mean, var in pairs]
