"""Input layers: the first Gram blocks, dot products of data with learned inducing inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d

from gramian.gram.blocks import GramBlocks
from gramian.gram.fast.windows import window_mean
from gramian.gram.random import permutation
from gramian.nn.checks import check_features

Lengthscales = Literal["none", "one", "per_feature"]
InducingStart = Literal["random", "clusters"]
Whiten = Callable[[Tensor], Tensor]
NUM_CLUSTERED = 20_000
"""Patches whose clusters are looked for."""


def log_lengthscales(choice: Lengthscales, num_features: int) -> nn.Parameter | None:
    """Logarithms of learned lengthscales that start at 1; None for none."""
    size = {"none": 0, "one": 1, "per_feature": num_features}[choice]
    return nn.Parameter(torch.zeros(size)) if size else None


def divided_by_lengthscales(
    x: Float[Tensor, "*points N"], logarithms: Float[Tensor, " _"] | None
) -> Float[Tensor, "*points N"]:
    """x / ℓ, feature by feature."""
    return x if logarithms is None else x * (-logarithms).exp()


class DenseInput(nn.Module):
    """G⁰ = (1/N) [X_i; x] [X_i; x]ᵀ for rows of N features (Algorithm 1, first line).

    With learned lengthscales ℓ, both x and X_i are divided by ℓ, feature by feature; ℓ starts at 1.

    Args:
        num_inducing: P, the number of inducing points.
        num_features: N.
        lengthscales: none; one learned lengthscale; or one per feature.
    """

    def __init__(
        self, num_inducing: int, num_features: int, lengthscales: Lengthscales = "none"
    ) -> None:
        super().__init__()
        self.inducing_points = nn.Parameter(torch.zeros(num_inducing, num_features))
        self.log_lengthscales = log_lengthscales(lengthscales, num_features)

    @property
    def num_inducing(self) -> int:
        """P."""
        return len(self.inducing_points)

    def inducing(self) -> Float[Tensor, "Pi Pi"]:
        """G_ii = X_i X_iᵀ / N."""
        X_i = self._scaled(self.inducing_points)
        return X_i @ X_i.mT / X_i.shape[1]

    def rows(self, x: Float[Tensor, "B N"]) -> tuple[Float[Tensor, "B Pi"], Float[Tensor, " B"]]:
        """G_ti = x X_iᵀ / N and g_tt = |x|² / N."""
        x, X_i = self._scaled(x), self._scaled(self.inducing_points)
        N = x.shape[1]
        return x @ X_i.mT / N, x.square().sum(1) / N

    def products(self, x: Float[Tensor, "B N"]) -> Float[Tensor, "B B"]:
        """All of G_tt = x xᵀ / N."""
        x = self._scaled(x)
        return x @ x.mT / x.shape[1]

    def data(self, x: Float[Tensor, "B N"], ii: Float[Tensor, "Pi Pi"]) -> GramBlocks:
        """The data blocks."""
        return GramBlocks(ii, *self.rows(x))

    def forward(self, x: Float[Tensor, "B N"]) -> GramBlocks:
        """All blocks for a batch of rows."""
        return self.data(x, self.inducing())

    @torch.no_grad()
    def set_inducing_(self, points: Tensor) -> None:
        """Start the inducing points at ``points``, [P, N] (copied)."""
        shape = tuple(self.inducing_points.shape)
        check_features(points, shape, self.inducing_points.dtype, "inducing points")
        self.inducing_points.copy_(points)

    def choose_inducing(
        self,
        x: Float[Tensor, "B N"],
        generator: torch.Generator,
        whiten: Whiten | None = None,
        weights: Float[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "Pi N"]:
        """Distinct rows of ``x`` at random (by ``weights``), whitened if ``whiten`` is given."""
        rows = _choose(x, len(self.inducing_points), generator, "rows", weights)
        return rows if whiten is None else whiten(rows)

    def _scaled(self, x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
        return divided_by_lengthscales(x, self.log_lengthscales)


class PatchInput(nn.Module):
    """G⁰ between f × f patches of images and learned inducing patches, D' = channels · f².

        G_ii = X Xᵀ / D'
        G_ti(b, r) = ⟨X_p, patch of image b at r⟩ / D'      zeros outside the image
        g_tt(b, r) = mean over the window's valid pixels of (1/channels) Σ_c Y²

    The published model starts here, one convolution earlier than Algorithm 1.

    Args:
        num_inducing: P, the number of inducing patches.
        channels: image channels.
        patch_size: f, odd.
        start: where the inducing patches start: at patches chosen at ``random``, as published, or
            at the centres of ``clusters`` of patches.
    """

    def __init__(
        self,
        num_inducing: int,
        channels: int,
        patch_size: int = 3,
        start: InducingStart = "random",
    ) -> None:
        super().__init__()
        if patch_size % 2 == 0:
            raise ValueError(f"patch_size must be odd, to have a centre, got {patch_size}")
        shape = (num_inducing, channels, patch_size, patch_size)
        self.inducing_patches = nn.Parameter(torch.zeros(shape))
        self.patch_size = patch_size
        self.start: InducingStart = start

    @property
    def num_inducing(self) -> int:
        """P."""
        return len(self.inducing_patches)

    def inducing(self) -> Float[Tensor, "Pi Pi"]:
        """G_ii = X Xᵀ / D'."""
        X_i = self.inducing_patches.flatten(1)
        return X_i @ X_i.mT / X_i.shape[1]

    def rows(
        self, images: Float[Tensor, "B C H W"]
    ) -> tuple[Float[Tensor, "B H W Pi"], Float[Tensor, "B H W"]]:
        """G_ti and g_tt at every pixel."""
        X_i = self.inducing_patches
        images = images.contiguous(memory_format=torch.channels_last)  # and so all that follows
        ti = conv2d(images, X_i / X_i[0].numel(), padding=self.patch_size // 2)
        tt_diag = window_mean(images.square().mean(1), self.patch_size)
        return ti.permute(0, 2, 3, 1), tt_diag

    def data(self, images: Float[Tensor, "B C H W"], ii: Float[Tensor, "Pi Pi"]) -> GramBlocks:
        """The data blocks."""
        return GramBlocks(ii, *self.rows(images))

    def forward(self, images: Float[Tensor, "B C H W"]) -> GramBlocks:
        """All blocks for a batch of images."""
        return self.data(images, self.inducing())

    @torch.no_grad()
    def set_inducing_(self, patches: Tensor) -> None:
        """Start the inducing patches at ``patches``, [P, channels, f, f] (copied)."""
        shape = tuple(self.inducing_patches.shape)
        check_features(patches, shape, self.inducing_patches.dtype, "inducing patches")
        self.inducing_patches.copy_(patches)

    def choose_inducing(
        self,
        images: Float[Tensor, "B C H W"],
        generator: torch.Generator,
        whiten: Whiten | None = None,
        weights: Float[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "Pi C f f"]:
        """Start values from the patches of at most 500 of the images, none across a border.

        ``random`` takes distinct ones; ``clusters`` the main directions of NUM_CLUSTERED of them;
        of images that are first whitened, if ``whiten`` is given.
        """
        f = self.patch_size
        if min(images.shape[-2:]) < f:
            size = tuple(images.shape[-2:])
            raise ValueError(f"images of {size} pixels hold no {f}×{f} patch")
        some = images[permutation(len(images), generator, weights)[:500].to(images.device)]
        some = some if whiten is None else whiten(some)
        patches = some.unfold(2, f, 1).unfold(3, f, 1).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
        P = len(self.inducing_patches)
        if self.start == "clusters":
            some = permutation(len(patches), generator)[:NUM_CLUSTERED].to(images.device)
            rows = patches[some].flatten(1)
            lengths = rows.norm(dim=1)
            rows = rows[lengths > lengths.median() / 2]  # of flat patches, noise has a direction
            if len(rows) > P:
                first = _choose(rows, P, generator, "patches")
                usual = lengths.median() or lengths[lengths > 0].median()  # if most are black
                centres = usual * directions(rows, first)
                return centres.view(P, *patches.shape[1:])
        return _choose(patches, P, generator, f"{f}×{f} patches")


def directions(
    rows: Float[Tensor, "N D"], first: Float[Tensor, "P D"], turns: int = 15
) -> Float[Tensor, "P D"]:
    """Centres of clusters by angle (spherical k-means), of length 1, from where they start.

    A cluster that gets no rows stays at its ``first`` centre.
    """
    rows, first = (x / x.norm(dim=1, keepdim=True) for x in (rows, first))
    centres = first
    for _ in range(turns):
        nearest = (rows @ centres.mT).argmax(1)
        sums = torch.zeros_like(first).index_add_(0, nearest, rows)
        sizes = sums.norm(dim=1, keepdim=True)
        centres = torch.where(sizes > 0, sums / sizes, first)
    return centres


def _choose(
    candidates: Tensor,
    count: int,
    generator: torch.Generator,
    what: str,
    weights: Tensor | None = None,
) -> Tensor:
    """``count`` candidates at random; equal ones only when there are too few different ones.

    Flat backgrounds make equal patches common, and two equal inducing points are one wasted.
    """
    if len(candidates) < count:
        raise ValueError(
            f"{count} inducing points were asked for, but the data hold only "
            f"{len(candidates)} {what}"
        )
    order = permutation(len(candidates), generator, weights).to(candidates.device)
    chosen = candidates[order[: 8 * count]]
    seen: dict[bytes, int] = {}
    for index, row in enumerate(chosen.flatten(1).detach().cpu().numpy()):
        seen.setdefault(row.tobytes(), index)
    first = list(seen.values())
    rest = [index for index in range(len(chosen)) if index not in set(first)]
    return chosen[torch.tensor((first + rest)[:count], device=candidates.device)].clone()
