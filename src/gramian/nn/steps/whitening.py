"""ZCA whitening of images or of their patches, fitted once and kept in the model's buffers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Literal, assert_never

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from gramian.nn.checks import check_features

CHUNK = 4096  # images handled at once in float64: a copy of all of them might not fit
BLOCK = 512  # columns of MᵀM computed at once
SIDE = 7  # of the patches that are whitened, where images are as large
MOST = 1000  # images from which patches are taken: there are hundreds in each

Whitening = bool | Literal["mirrored", "patches"]
"""Of whole images, as published (True); none (False); of images and mirror images; of patches."""


class AnyZCA(nn.Module, ABC):
    """Standardise channels, turn images by a fitted linear map, standardise channels again.

    Args:
        image_shape: (channels, height, width).
        epsilon: ε, the share of the mean eigenvalue added to all of them.
    """

    channel_mean: Tensor
    channel_std: Tensor
    white_mean: Tensor
    white_std: Tensor

    def __init__(self, image_shape: tuple[int, int, int], epsilon: float = 0.1) -> None:
        super().__init__()
        self.image_shape = image_shape
        self.epsilon = epsilon
        for when in ("channel", "white"):
            self.register_buffer(f"{when}_mean", torch.zeros(image_shape[0]))
            self.register_buffer(f"{when}_std", torch.ones(image_shape[0]))

    @abstractmethod
    def fit_(self, images: Float[Tensor, "N C H W"]) -> None:
        """Fit to images."""

    @abstractmethod
    def turn(self, M: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """The linear map of standardised images."""

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Whiten images with the fitted statistics."""
        M = _standardise(images, self.channel_mean, self.channel_std)
        return _standardise(self.turn(M), self.white_mean, self.white_std)

    def _keep_(self, mean: Tensor, std: Tensor, white_mean: Tensor, white_std: Tensor) -> None:
        """The statistics of the channels before and after the map."""
        self.channel_mean.copy_(mean)
        self.channel_std.copy_(std)
        self.white_mean.copy_(white_mean)
        self.white_std.copy_(white_std)


class ZCA(AnyZCA):
    """Standardise channels, multiply by W = U (Λ + ε·mean Λ)^(−½) Uᵀ, standardise channels again.

    U Λ Uᵀ is the eigendecomposition of MᵀM, with M the matrix of standardised images, one a row.
    The symmetric solver in float64 matters: a general one in float32 is off by several per cent.
    The channels of MW are standardised by moments that follow from MᵀM, without a pass over MW.

    Args:
        image_shape: (channels, height, width).
        epsilon: ε, the share of the mean eigenvalue added to all of them.
    """

    matrix: Tensor

    def __init__(self, image_shape: tuple[int, int, int], epsilon: float = 0.1) -> None:
        super().__init__(image_shape, epsilon)
        channels, height, width = image_shape
        self.register_buffer("matrix", torch.eye(channels * height * width))

    @torch.no_grad()
    def fit_(self, images: Tensor) -> None:
        """Fit to ``images`` [N, *image_shape]; at least as many as pixels are advisable."""
        _check_images(images, self.image_shape)
        D, N = self.matrix.shape[0], len(images)
        mean, std = _channel_statistics(chunk.double() for chunk in images.split(CHUNK))
        MtM = torch.zeros(D, D, dtype=torch.float64, device=images.device)
        total = MtM.new_zeros(D)
        for chunk in images.split(CHUNK):
            M = _standardise(chunk.double(), mean, std).flatten(1)
            total += M.sum(0)
            _add_squares_(MtM, M)
        eigenvalues, U = torch.linalg.eigh(MtM, UPLO="U")
        shrink = (eigenvalues + self.epsilon * eigenvalues.mean()).rsqrt()
        W = (U * shrink) @ U.mT
        white_mean = _by_channel(total @ W, self.image_shape) / N
        squares = U.square() @ (eigenvalues * shrink.square())  # the diagonal of W MᵀM W
        pixels = D // self.image_shape[0] * N
        spread = _by_channel(squares, self.image_shape) / N - white_mean.square()
        self.matrix.copy_(W)
        self._keep_(mean, std, white_mean, _deviation(spread, pixels))

    def turn(self, M: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """M W, with an image a row."""
        return (M.flatten(1) @ self.matrix).view_as(M)


class MirrorZCA(AnyZCA):
    """``ZCA`` of images and their mirror images together, with half of the work and of the numbers.

    Let l be the left half of an image and r its right half, mirrored. Mirroring the image leaves
    e = (l + r)/√2 as it is and changes the sign of o = (l − r)/√2, so over images and mirror images
    e and o are uncorrelated, and W is a matrix for e and one for o. A middle column belongs to e.

    Args:
        image_shape: (channels, height, width), at least two pixels wide.
        epsilon: ε, the share of the mean eigenvalue added to all of them.
    """

    even: Tensor
    odd: Tensor

    def __init__(self, image_shape: tuple[int, int, int], epsilon: float = 0.1) -> None:
        super().__init__(image_shape, epsilon)
        channels, height, width = image_shape
        self.register_buffer("even", torch.eye(channels * height * (width - width // 2)))
        self.register_buffer("odd", torch.eye(channels * height * (width // 2)))

    @torch.no_grad()
    def fit_(self, images: Tensor) -> None:
        """Fit to ``images`` [N, *image_shape] and their mirror images."""
        _check_images(images, self.image_shape)
        channels, height, width = self.image_shape
        D, N = channels * height * width, 2 * len(images)
        mean, std = _channel_statistics(
            chunk.double().flip(sides) for chunk in images.split(CHUNK) for sides in ((), (3,))
        )
        sizes = (len(self.even), len(self.odd))
        squares = [torch.zeros(2 * [size]).to(images.device, torch.float64) for size in sizes]
        total = squares[0].new_zeros(sizes[0])
        for chunk in images.split(CHUNK):
            e, o = _halves(_standardise(chunk.double(), mean, std))
            total += 2 * e.flatten(1).sum(0)
            for half, part in zip(squares, (e, o), strict=True):
                _add_squares_(half, math.sqrt(2) * part.flatten(1))
        spectra = [torch.linalg.eigh(half, UPLO="U") for half in squares]
        ridge = self.epsilon * sum(values.sum() for values, _ in spectra) / D
        second = mean.new_zeros(channels)  # sums of squares of the whitened images
        matrices = []
        for values, U in spectra:
            shrink = (values + ridge).rsqrt()
            matrices.append((U * shrink) @ U.mT)
            second += (U.square() @ (values * shrink.square())).view(channels, -1).sum(1)
        e = (total @ matrices[0] / N).view(1, channels, height, -1)
        white_mean = _joined(e, torch.zeros_like(e[..., : width // 2])).mean((0, 2, 3))
        pixels = height * width * N
        self.even.copy_(matrices[0])
        self.odd.copy_(matrices[1])
        spread = second / pixels - white_mean.square()
        self._keep_(mean, std, white_mean, _deviation(spread, pixels))

    def turn(self, M: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Each half by its own matrix."""
        e, o = _halves(M)
        return _joined((e.flatten(1) @ self.even).view_as(e), (o.flatten(1) @ self.odd).view_as(o))


class PatchZCA(AnyZCA):
    """ZCA of f×f patches, of which the middle pixel is kept: a convolution.

    Standardise channels; with Σ = U Λ Uᵀ the second moment of patches inside the images, the rows
    of U (Λ + ε·mean Λ)^(−½) Uᵀ that belong to the middle pixel are the filters; standardise
    channels again. Beyond the border an image goes on with the pixel nearest to it. What ``ZCA``
    does with D² numbers for images of D pixels this does with C²f², almost: the rows of its matrix
    are nearly the same filter, moved.

    Args:
        image_shape: (channels, height, width).
        epsilon: ε, the share of the mean eigenvalue added to all of them.
        side: f, odd; of small images the largest that fits.
    """

    filters: Tensor

    def __init__(
        self, image_shape: tuple[int, int, int], epsilon: float = 0.1, side: int = SIDE
    ) -> None:
        super().__init__(image_shape, epsilon)
        channels = image_shape[0]
        f = min(side, *image_shape[1:])
        f -= 1 - f % 2
        identity = torch.zeros(channels, channels, f, f)
        identity[:, :, f // 2, f // 2] = torch.eye(channels)
        self.register_buffer("filters", identity)

    @torch.no_grad()
    def fit_(self, images: Tensor) -> None:
        """Fit to ``images`` [N, *image_shape]: to 1,000 of them or fewer, evenly spaced."""
        _check_images(images, self.image_shape)
        some = images[:: -(-len(images) // MOST)].double()
        mean, std = _channel_statistics([some])
        M = _standardise(some, mean, std)
        channels, _, f, _ = self.filters.shape
        Sigma = torch.zeros(2 * [channels * f * f], dtype=M.dtype, device=M.device)
        for part in M.split(64):
            patches = part.unfold(2, f, 2).unfold(3, f, 2)  # every second: [N, C, ., ., f, f]
            rows = patches.permute(0, 2, 3, 1, 4, 5).flatten(0, 2).flatten(1)
            Sigma += rows.mT @ rows
        eigenvalues, U = torch.linalg.eigh(Sigma)
        W = (U * (eigenvalues + self.epsilon * eigenvalues.mean()).rsqrt()) @ U.mT
        middle = W.view(channels, f, f, channels, f, f)[:, f // 2, f // 2]
        white_mean, white_std = _channel_statistics([_filtered(M, middle)])
        self.filters.copy_(middle)
        self._keep_(mean, std, white_mean, white_std)

    def turn(self, M: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """The convolution."""
        return _filtered(M, self.filters)


def build_whitening(kind: Whitening, image_shape: tuple[int, int, int]) -> AnyZCA | None:
    """The whitening of a model."""
    match kind:
        case False:
            return None
        case True:
            return ZCA(image_shape)
        case "mirrored":
            return MirrorZCA(image_shape)
        case "patches":
            return PatchZCA(image_shape)
        case _:
            assert_never(kind)


def _halves(images: Float[Tensor, "B C H W"]) -> tuple[Tensor, Tensor]:
    """e, with the middle column if there is one, and o."""
    half = images.shape[3] // 2
    left, middle, right = images.split((half, images.shape[3] - 2 * half, half), dim=3)
    right = right.flip(3)
    root = math.sqrt(0.5)
    return torch.cat([root * (left + right), middle], dim=3), root * (left - right)


def _joined(e: Tensor, o: Tensor) -> Float[Tensor, "B C H W"]:
    """The images of e and o."""
    half, root = o.shape[3], math.sqrt(0.5)
    middle, e = e[..., half:], e[..., :half]
    return torch.cat([root * (e + o), middle, root * (e - o).flip(3)], dim=3)


def _add_squares_(MtM: Float[Tensor, "D D"], M: Float[Tensor, "N D"]) -> None:
    """Add the upper triangle of MᵀM."""
    D = len(MtM)
    for start in range(0, D, BLOCK):
        end = min(start + BLOCK, D)
        MtM[:end, start:end] += M[:, :end].mT @ M[:, start:end]


def _deviation(spread: Tensor, pixels: int) -> Tensor:
    """Unbiased, from the mean square about the mean; a constant channel keeps scale 1."""
    std = (spread.clamp_min(0) * (pixels / (pixels - 1))).sqrt()
    return torch.where(std < 1e-7 * std.max(), torch.ones_like(std), std)


def _filtered(images: Tensor, filters: Tensor) -> Tensor:
    """A convolution; beyond the border the nearest pixel counts."""
    return conv2d(pad(images, 4 * [filters.shape[-1] // 2], mode="replicate"), filters)


def _check_images(images: Tensor, image_shape: tuple[int, int, int]) -> None:
    check_features(images, ("N", *image_shape), images.dtype, "images to whiten")
    if len(images) < 2:
        raise ValueError("whitening needs at least 2 images, got 1")


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
