"""Kernel convolution: the step where pixels meet, and where inducing points become patches."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d

from gramian.gram.blocks import GramBlocks
from gramian.gram.fast.split import Split, is_shared, shared_congruence, shared_solve_lower
from gramian.gram.fast.windows import window_mean
from gramian.gram.random import normals

MixingStart = Literal["random", "near_identity"]


class KernelConv(nn.Module):
    """Convolution of a kernel, with a learned mixing C of the inducing points (Algorithm 1).

        K_ii    = (1/D) Σ_d C_d Φ_ii C_dᵀ
        K_ti(r) = (1/D) Σ_d Φ_ti(s·r + d) C_dᵀ      zeros outside the image
        k_tt(r) = mean of φ_tt over the window's pixels inside the image

    C_d (P_out × P_in) makes pixel d of the new inducing patches from the old inducing points;
    D = f² and C = raw_mixing / √P_in. Where processes share the products with C, ``split`` is set.

    Args:
        num_inducing_in: P_in.
        num_inducing: P_out.
        filter_size: f.
        stride: s.
        start: where raw_mixing starts (see ``start_``).
    """

    def __init__(
        self,
        num_inducing_in: int,
        num_inducing: int,
        filter_size: int = 3,
        stride: int = 1,
        start: MixingStart = "random",
    ) -> None:
        super().__init__()
        shape = (num_inducing, num_inducing_in, filter_size, filter_size)
        self.raw_mixing = nn.Parameter(torch.zeros(shape))
        self.filter_size = filter_size
        self.stride = stride
        self.start: MixingStart = start
        self.split: Split | None = None

    @property
    def mixing(self) -> Float[Tensor, "Po Pi f f"]:
        """C, with C_d = mixing[:, :, d]."""
        return self.raw_mixing / math.sqrt(self.raw_mixing.shape[1])

    def inducing(self, phi_ii: Float[Tensor, "Pi Pi"]) -> Float[Tensor, "Po Po"]:
        """K_ii."""
        return shared_congruence(self.mixing.flatten(2).mT, phi_ii, self.split)

    def data(
        self,
        phi: GramBlocks,
        K_ii: Float[Tensor, "Po Po"],
        whitener: Float[Tensor, "Po Po"] | None = None,
    ) -> GramBlocks:
        """K_ti and k_tt; with a ``whitener`` L_K the data come whitened: K_ti L_K⁻ᵀ for K_ti.

        The whitener works on the filters, L_K⁻¹ C_d for C_d, and not on the pixels.
        """
        f, stride = self.filter_size, self.stride
        filters = self.mixing / f**2
        if whitener is not None:
            flat = shared_solve_lower(whitener, filters.flatten(1), self.split)
            filters = flat.view_as(filters)
        ti = convolve(phi.ti, filters, stride)
        return GramBlocks(K_ii, ti, window_mean(phi.tt_diag, f, stride))

    def whitens_filters(self, shape: tuple[int, ...]) -> bool:
        """Whether to whiten the filters or the pixels of [B, H, W] maps: what is fewer.

        Processes that share the filters must all decide the same, so the usual batch counts.
        """
        batch, *space = shape
        if self.split is not None and is_shared(len(self.raw_mixing), self.split):
            batch = self.split.batch
        return batch * math.prod(self.output_space(tuple(space))) > self.raw_mixing[0].numel()

    def output_space(self, space: tuple[int, ...]) -> tuple[int, ...]:
        """(H, W) of the output map of a (H, W) map."""
        f = self.filter_size
        return tuple((side + 2 * (f // 2) - f) // self.stride + 1 for side in space)

    def forward(self, phi: GramBlocks) -> GramBlocks:
        """All blocks of the convolved kernel."""
        return self.data(phi, self.inducing(phi.ii))

    @torch.no_grad()
    def start_(self, generator: torch.Generator) -> None:
        """Draw start values: standard normals (random, as published), or mostly the identity.

        ``near_identity``: C_d = 0.7·I + 0.3·noise at every pixel d, so that a new inducing patch
        starts as the uniform patch of an old inducing point and resembles smooth images. With few
        inducing points random patches resemble no image, and little of the signal gets through.
        """
        self.raw_mixing.copy_(normals(self.raw_mixing.shape, generator, self.raw_mixing.dtype))
        if self.start == "near_identity":
            P_out, P_in = self.raw_mixing.shape[:2]
            self.raw_mixing.mul_(0.3)
            new = torch.arange(P_out, device=self.raw_mixing.device)
            self.raw_mixing[new, new % P_in] += 0.7 * math.sqrt(P_in)

    def extra_repr(self) -> str:
        """Sizes, for ``print``."""
        P_out, P_in, f, _ = self.raw_mixing.shape
        return f"{P_in} → {P_out}, {f}×{f}, stride {self.stride}"


def convolve(
    maps: Float[Tensor, "B H W Pi"], filters: Float[Tensor, "Po Pi f f"], stride: int
) -> Float[Tensor, "B height width Po"]:
    """Cross-correlation of maps with channels last, zeros outside.

    A single pixel is a product: quicker, and oneDNN's weight gradient of a 1×1 convolution with a
    stride and few channels writes past its buffer (oneDNN issue 6035).
    """
    f = filters.shape[-1]
    if f == 1:
        return maps[:, ::stride, ::stride] @ filters.flatten(1).mT
    channels_first = maps.permute(0, 3, 1, 2)  # in name; in memory channels are last
    return conv2d(channels_first, filters, stride=stride, padding=f // 2).permute(0, 2, 3, 1)
