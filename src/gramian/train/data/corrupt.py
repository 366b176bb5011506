"""Images that a camera or a cable has spoilt: six ways, five strengths, the same every time."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import conv2d, pad

from gramian.train.data.data_errors import DataError
from gramian.train.data.dataset import Dataset

Images = Float[Tensor, "B C H W"]  # from 0 to 1
CHUNK = 1000
REFERENCE = 32  # pixels of an image's side; blur and shift grow with it


def add_noise(images: Images, amount: float, draw: torch.Generator) -> Images:
    """Gaussian noise of this deviation on each pixel."""
    return images + amount * torch.randn(images.shape, generator=draw)


def blur(images: Images, amount: float, draw: torch.Generator) -> Images:
    """A Gaussian filter of this deviation, in pixels; border pixels are repeated outside."""
    sigma = amount * max(_scale(images), 0.75)  # less would do nothing
    radius = max(1, math.ceil(3 * sigma))
    offsets = torch.arange(-radius, radius + 1)
    window = torch.exp(-offsets.square() / (2 * sigma**2))
    window = (window / window.sum()).expand(images.shape[1], 1, 1, -1)
    channels = images.shape[1]
    wide = conv2d(_repeated(images, radius), window, groups=channels)
    return conv2d(wide, window.mT, groups=channels)


def lower_contrast(images: Images, amount: float, draw: torch.Generator) -> Images:
    """This share of each image's differences from its own mean is left."""
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + amount * (images - mean)


def brighten(images: Images, amount: float, draw: torch.Generator) -> Images:
    """This much is added to each pixel."""
    return images + amount


def shift(images: Images, amount: float, draw: torch.Generator) -> Images:
    """Each image moves by this many pixels in a random direction; border pixels are repeated."""
    distance = max(1, round(amount * max(_scale(images), 0.5)))
    B, _, H, W = images.shape
    angle = 2 * math.pi * torch.rand(B, generator=draw)
    down, right = (distance * part(angle) for part in (torch.sin, torch.cos))
    windows = _repeated(images, distance).unfold(2, H, 1).unfold(3, W, 1)
    top, left = (distance - step.round().long() for step in (down, right))
    return windows[torch.arange(B), :, top, left]


def compress(images: Images, amount: float, draw: torch.Generator) -> Images:
    """Saved as JPEG of this quality (100 is best), and read again."""
    if images.shape[1] not in (1, 3):
        raise DataError(f"JPEG is for 1 or 3 channels, the images have {images.shape[1]}")
    return torch.stack([_through_jpeg(image, round(amount)) for image in as_bytes(images)]) / 255


CORRUPTIONS: dict[str, tuple[Callable[[Images, float, torch.Generator], Images], list[float]]] = {
    "noise": (add_noise, [0.04, 0.08, 0.12, 0.16, 0.2]),
    "blur": (blur, [0.5, 0.75, 1.0, 1.5, 2.0]),
    "contrast": (lower_contrast, [0.7, 0.5, 0.35, 0.2, 0.1]),
    "brightness": (brighten, [0.1, 0.2, 0.3, 0.4, 0.5]),
    "shift": (shift, [1.0, 2.0, 3.0, 4.0, 6.0]),
    "jpeg": (compress, [60.0, 40.0, 25.0, 15.0, 8.0]),
}
"""What each does, and its amount at strength 1 to 5."""


@dataclass(frozen=True)
class Corruption:
    """One way, at one strength.

    Args:
        kind: of ``CORRUPTIONS``.
        strength: 1 (weak) to 5.
        seed: of noise and directions.
    """

    kind: str
    strength: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what there is not."""
        if self.kind not in CORRUPTIONS or not 1 <= self.strength <= 5:
            raise DataError(
                f"a corruption is {', '.join(CORRUPTIONS)} with a strength from 1 to 5, such as "
                f"blur:3, got {self}"
            )

    @classmethod
    def parse(cls, words: str, seed: int = 0) -> Corruption:
        """From ``kind:strength``."""
        kind, _, strength = words.partition(":")
        return cls(kind, int(strength) if strength.isdecimal() else 0, seed)

    def __str__(self) -> str:
        return f"{self.kind}:{self.strength}"

    def __call__(self, images: Tensor) -> UInt8[Tensor, "N C H W"]:
        """Corrupted copies; an image's noise depends on its place among the images."""
        if images.ndim != 4 or images.dtype != torch.uint8:
            raise DataError(
                "corruptions are for uint8 images [N, C, H, W], got "
                f"{str(images.dtype).removeprefix('torch.')} of shape {tuple(images.shape)}"
            )
        function, amounts = CORRUPTIONS[self.kind]
        draw = torch.Generator().manual_seed(self.seed)
        parts = [
            as_bytes(function(part.float() / 255, amounts[self.strength - 1], draw))
            for part in images.cpu().split(CHUNK)
        ]
        return torch.cat(parts).to(images.device)


def corrupted(data: Dataset, corruption: Corruption) -> Dataset:
    """The data set with corrupted images."""
    return replace(data, x=corruption(data.x))


def as_bytes(images: Images) -> UInt8[Tensor, "B C H W"]:
    """From 0…1 to 0…255, what lies outside at the ends."""
    return (images * 255).round().clamp(0, 255).byte()


def _scale(images: Images) -> float:
    return min(images.shape[2:]) / REFERENCE


def _repeated(images: Images, width: int) -> Float[Tensor, "B C height width"]:
    """With the border's pixels repeated ``width`` times all round."""
    return pad(images, (width,) * 4, mode="replicate")


def _through_jpeg(image: UInt8[Tensor, "C H W"], quality: int) -> Float[Tensor, "C H W"]:
    grey = len(image) == 1
    pixels = image[0].numpy() if grey else image.permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    read = torch.from_numpy(np.array(Image.open(file, formats=["JPEG"]), dtype=np.float32))
    return read[None] if grey else read.permute(2, 0, 1)
