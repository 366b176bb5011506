"""ZCA whitening of images, fitted once and kept in the model's buffers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.nn.checks import check_features

CHUNK = 4096  # images handled at once in float64: a copy of all of them might not fit
BLOCK = 512  # columns of MᵀM computed at once


class ZCA(nn.Module):
    """Standardise channels, multiply by W = U (Λ + ε·mean Λ)^(−½) Uᵀ, standardise channels again.

    U Λ Uᵀ is the eigendecomposition of MᵀM, with M the matrix of standardised images, one a row.
    The symmetric solver in float64 matters: a general one in float32 is off by several per cent.
    The channels of MW are standardised by moments that follow from MᵀM, without a pass over MW.

    Args:
        image_shape: (channels, height, width).
        epsilon: ε, the share of the mean eigenvalue added to all of them.
    """

    channel_mean: Tensor
    channel_std: Tensor
    matrix: Tensor
    white_mean: Tensor
    white_std: Tensor

    def __init__(self, image_shape: tuple[int, int, int], epsilon: float = 0.1) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.image_shape = image_shape
        self.epsilon = epsilon
        self.register_buffer("channel_mean", torch.zeros(channels))
        self.register_buffer("channel_std", torch.ones(channels))
        self.register_buffer("matrix", torch.eye(channels * height * width))
        self.register_buffer("white_mean", torch.zeros(channels))
        self.register_buffer("white_std", torch.ones(channels))

    @torch.no_grad()
    def fit_(self, images: Tensor) -> None:
        """Fit to ``images`` [N, *image_shape]; at least as many as pixels are advisable."""
        check_features(images, ("N", *self.image_shape), images.dtype, "images to whiten")
        if len(images) < 2:
            raise ValueError("whitening needs at least 2 images, got 1")
        D, N = self.matrix.shape[0], len(images)
        mean, std = _channel_statistics(chunk.double() for chunk in images.split(CHUNK))
        MtM = torch.zeros(D, D, dtype=torch.float64, device=images.device)
        total = MtM.new_zeros(D)
        for chunk in images.split(CHUNK):
            M = _standardise(chunk.double(), mean, std).flatten(1)
            total += M.sum(0)
            for start in range(0, D, BLOCK):  # the upper triangle
                end = min(start + BLOCK, D)
                MtM[:end, start:end] += M[:, :end].mT @ M[:, start:end]
        eigenvalues, U = torch.linalg.eigh(MtM, UPLO="U")
        shrink = (eigenvalues + self.epsilon * eigenvalues.mean()).rsqrt()
        W = (U * shrink) @ U.mT
        white_mean = _by_channel(total @ W, self.image_shape) / N
        squares = U.square() @ (eigenvalues * shrink.square())  # the diagonal of W MᵀM W
        pixels = D // self.image_shape[0] * N
        spread = _by_channel(squares, self.image_shape) / N - white_mean.square()
        white_std = (spread.clamp_min(0) * (pixels / (pixels - 1))).sqrt()
        white_std[white_std < 1e-7 * white_std.max()] = 1.0  # rounding of a constant channel
        self.channel_mean.copy_(mean)
        self.channel_std.copy_(std)
        self.matrix.copy_(W)
        self.white_mean.copy_(white_mean)
        self.white_std.copy_(white_std)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Whiten images with the fitted statistics."""
        M = _standardise(images, self.channel_mean, self.channel_std).flatten(1)
        return _standardise((M @ self.matrix).view_as(images), self.white_mean, self.white_std)


def _channel_statistics(chunks: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and unbiased standard deviation of each channel; a constant channel keeps scale 1.

    Chunks are merged by Chan's formula, which does not cancel: M₂ = Σ M₂ₖ + δ²·n·nₖ/(n + nₖ).
    """
    count, mean, spread = 0, torch.zeros((), dtype=torch.float64), torch.zeros(())
    for chunk in chunks:
        var_k, mean_k = torch.var_mean(chunk, dim=(0, 2, 3), correction=0)
        n_k = chunk[:, 0].numel()
        delta = mean_k - mean
        spread = spread + n_k * var_k + delta.square() * (count * n_k / (count + n_k))
        mean = mean + delta * (n_k / (count + n_k))
        count += n_k
    std = (spread / (count - 1)).sqrt()
    return mean, torch.where(std > 0, std, torch.ones_like(std))


def _by_channel(values: Tensor, image_shape: tuple[int, int, int]) -> Tensor:
    """Means over the pixels of each channel."""
    return values.view(image_shape).mean((1, 2))


def _standardise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return (images - mean[:, None, None]) / std[:, None, None]
