"""Images that a model was not made for: brought to its size and colours, or noise."""

from __future__ import annotations

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn.functional import interpolate

from gramian.train.data.corrupt import CHUNK, as_bytes
from gramian.train.data.data_errors import DataError

LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R BT.601)


def noise_images(
    number: int, shape: tuple[int, ...], generator: torch.Generator
) -> UInt8[Tensor, "N C H W"]:
    """Every value of every pixel at random, all equally probable."""
    return torch.randint(0, 256, (number, *shape), generator=generator, dtype=torch.uint8)


def as_images_of(x: Tensor, shape: tuple[int, ...]) -> UInt8[Tensor, "N C H W"]:
    """uint8 images [N, C, H, W] of another ``shape`` (C, H, W): scaled, made grey or coloured.

    What is too wide or too high for the shape is cut off on both sides alike, not squeezed.
    """
    if x.ndim != 4 or x.dtype != torch.uint8 or len(shape) != 3:
        raise DataError(
            "only uint8 images can be made to fit other images, got "
            f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape[1:])} for {shape}"
        )
    if tuple(x.shape[1:]) == shape:
        return x
    channels, height, width = shape
    if {x.shape[1], channels} - {1, 3}:
        raise DataError(
            f"images of {x.shape[1]} channels cannot be made to have {channels}: only 1 and 3 can"
        )
    cut_height = min(x.shape[2], max(1, round(x.shape[3] * height / width)))
    cut_width = min(x.shape[3], max(1, round(x.shape[2] * width / height)))
    top, left = (x.shape[2] - cut_height) // 2, (x.shape[3] - cut_width) // 2
    x = x[:, :, top : top + cut_height, left : left + cut_width]
    parts = []
    for part in x.split(CHUNK):
        images = part.float() / 255
        if x.shape[1] == 3 and channels == 1:
            images = (images * images.new_tensor(LUMINANCE)[:, None, None]).sum(1, keepdim=True)
        images = images.expand(-1, channels, -1, -1)
        smaller = height < x.shape[2] or width < x.shape[3]
        fitted = interpolate(images, (height, width), mode="bilinear", antialias=smaller)
        parts.append(as_bytes(fitted))
    return torch.cat(parts)
