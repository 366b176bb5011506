"""Image files as one uint8 tensor: one size and one mode, or an error that names the files."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from gramian.train.data.data_errors import DataError, DataMissingError
from gramian.train.data.downloads.store import Bytes
from gramian.train.data.other_images import as_images_of

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
GREY = ("L", "1", "LA")
MOST_PIXELS = 30_000_000  # of one image, before anything is decoded
MOST_BYTES = 200_000_000  # of one file
log = logging.getLogger("gramian")
DEEP = ("I", "F")  # more than 8 bits per channel; Pillow would clip them, not scale them


def read_images(
    paths: Sequence[Path], shape: tuple[int, ...] | None = None
) -> UInt8[Tensor, "N C H W"]:
    """Grey or RGB images of one size; palettes are resolved and transparency is dropped.

    With a ``shape`` (C, H, W) any sizes and colours, each brought to it (``as_images_of``).
    """
    if not paths:
        raise DataError("at least one image file is needed, got none")
    images: list[Bytes] = []
    changed: list[str] = []
    for path in paths:
        image = _read(path)
        if shape is not None and image.shape != shape:
            changed.append(f"{path} had {_look(image.shape)}")
            image = as_images_of(torch.from_numpy(image)[None], shape)[0].numpy()
        elif images and image.shape != images[0].shape:
            raise DataError(_mixed(paths[0], images[0], path, image))
        images.append(image)
    if changed and shape is not None:
        more = f", and {len(changed) - 1:,} more" if len(changed) > 1 else ""
        log.info("scaled to %s: %s%s", _look(shape), changed[0], more)
    return torch.from_numpy(np.stack(images))


def _read(path: Path) -> Bytes:
    if not path.is_file():
        raise DataMissingError(f"there is no image file {path}")
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"{path} has more than {MOST_BYTES:,} bytes: too many for an image")
    # From memory: a damaged length in a file would ask it for gigabytes.
    return decoded(str(path), path.read_bytes())


def decoded(name: str, content: bytes, most_pixels: int | None = None) -> Bytes:
    """The image in a file of this content, [C, H, W], upright as its camera recorded it."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            _check_content(name, image, most_pixels or MOST_PIXELS)
            upright = ImageOps.exif_transpose(image)
            if image.mode == "P":
                upright = upright.convert("RGBA")  # the way that handles transparent colours
            pixels = np.array(upright.convert("L" if image.mode in GREY else "RGB"))
    except DataError:
        raise
    except UnidentifiedImageError as error:
        raise DataError(f"{name} cannot be read as an image: its format is unknown") from error
    except Exception as error:  # the decoders of damaged files raise whatever comes to hand
        raise DataError(f"{name} cannot be read as an image: {error}") from error
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _check_content(path: str, image: Image.Image, most_pixels: int) -> None:
    """Refuse what a conversion to 8 bits would change silently, and what would fill the memory."""
    if image.width * image.height > most_pixels:
        raise DataError(
            f"{path} has {image.width}×{image.height} pixels, more than {most_pixels:,}: resize it"
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
    return (
        f"all images must have one size and be all grey or all RGB, but {first} has "
        f"{_look(old.shape)} and {second} has {_look(new.shape)}: resize or convert them first, "
        f"for example with `mogrify -resize {old.shape[2]}x{old.shape[1]}! "
        f"-colorspace {'Gray' if old.shape[0] == 1 else 'sRGB'} FILES`"
    )


def _look(shape: tuple[int, ...]) -> str:
    """The size and the colours of an image [C, H, W]."""
    channels, height, width = shape
    return f"{width}×{height} pixels, {'grey' if channels == 1 else 'RGB'}"
