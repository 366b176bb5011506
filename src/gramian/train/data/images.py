"""Image files as one uint8 tensor: one size and one mode, or an error that names the files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps
from torch import Tensor

from gramian.train.data.data_errors import DataError, DataMissingError
from gramian.train.data.downloads.store import Bytes

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
GREY = ("L", "1", "LA")
MOST_PIXELS = 30_000_000  # of one image, before anything is decoded
MOST_BYTES = 200_000_000  # of one file
DEEP = ("I", "F")  # more than 8 bits per channel; Pillow would clip them, not scale them


def read_images(paths: Sequence[Path]) -> UInt8[Tensor, "N C H W"]:
    """Grey or RGB images of one size; palettes are resolved and transparency is dropped."""
    if not paths:
        raise DataError("at least one image file is needed, got none")
    images: list[Bytes] = []
    for path in paths:
        image = _read(path)
        if images and image.shape != images[0].shape:
            raise DataError(_mixed(paths[0], images[0], path, image))
        images.append(image)
    return torch.from_numpy(np.stack(images))


def _read(path: Path) -> Bytes:
    """One image, [C, H, W], turned upright as its camera recorded it."""
    if not path.is_file():
        raise DataMissingError(f"there is no image file {path}")
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"{path} has more than {MOST_BYTES:,} bytes: too many for an image")
    try:
        # From memory: a damaged length in a file would ask it for gigabytes.
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            _check_content(path, image)
            upright = ImageOps.exif_transpose(image)
            if image.mode == "P":
                upright = upright.convert("RGBA")  # the way that handles transparent colours
            pixels = np.asarray(upright.convert("L" if image.mode in GREY else "RGB"))
    except DataError:
        raise
    except Exception as error:  # the decoders of damaged files raise whatever comes to hand
        raise DataError(f"{path} cannot be read as an image: {error}") from error
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _check_content(path: Path, image: Image.Image) -> None:
    """Refuse what a conversion to 8 bits would change silently, and what would fill the memory."""
    if image.width * image.height > MOST_PIXELS:
        raise DataError(
            f"{path} has {image.width}×{image.height} pixels, more than {MOST_PIXELS:,}: resize it"
        )
    if image.mode.startswith(DEEP):
        raise DataError(
            f"{path} has more than 8 bits per channel (mode {image.mode}): save it with 8 bits"
        )
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise DataError(f"{path} holds {frames} images: save each as a file of its own")


def _mixed(first: Path, old: Bytes, second: Path, new: Bytes) -> str:
    """Two images that do not fit together, and what to do."""

    def look(image: Bytes) -> str:
        channels, height, width = image.shape
        return f"{width}×{height} pixels, {'grey' if channels == 1 else 'RGB'}"

    return (
        f"all images must have one size and be all grey or all RGB, but {first} has {look(old)} "
        f"and {second} has {look(new)}: resize or convert them first, for example with "
        f"`mogrify -resize {old.shape[2]}x{old.shape[1]}! "
        f"-colorspace {'Gray' if old.shape[0] == 1 else 'sRGB'} FILES`"
    )
