"""ZCA whitening of images, fitted once and kept in the model's buffers."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.nn.checks import check_features


class ZCA(nn.Module):
    """Standardise channels, multiply by W = U (Λ + ε·mean Λ)^(−½) Uᵀ, standardise channels again.

    U Λ Uᵀ is the eigendecomposition of MᵀM, with M the matrix of standardised images, one a row.
    The symmetric solver in float64 matters: a general one in float32 is off by several per cent.

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
        exact = images.double()
        mean, std = _channel_statistics(exact)
        M = _standardise(exact, mean, std).flatten(1)
        eigenvalues, U = torch.linalg.eigh(M.mT @ M)
        W = (U * (eigenvalues + self.epsilon * eigenvalues.mean()).rsqrt()) @ U.mT
        white_mean, white_std = _channel_statistics((M @ W).view_as(exact))
        self.channel_mean.copy_(mean)
        self.channel_std.copy_(std)
        self.matrix.copy_(W)
        self.white_mean.copy_(white_mean)
        self.white_std.copy_(white_std)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Whiten images with the fitted statistics."""
        M = _standardise(images, self.channel_mean, self.channel_std).flatten(1)
        return _standardise((M @ self.matrix).view_as(images), self.white_mean, self.white_std)


def _channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased standard deviation of each channel; a constant channel keeps scale 1."""
    std, mean = torch.std_mean(images, dim=(0, 2, 3))
    return mean, torch.where(std > 0, std, torch.ones_like(std))


def _standardise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return (images - mean[:, None, None]) / std[:, None, None]
