"""Image files as one uint8 tensor: one size and one mode, or an error that names the files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from gramian.image_files import ImageFileError, decode
from gramian.train.data.data_errors import DataError, DataMissingError
from gramian.train.data.downloads.store import Bytes
from gramian.train.data.other_images import as_images_of

MOST_BYTES = 200_000_000  # of one file
log = logging.getLogger("gramian")


def read_images(
    paths: Sequence[Path], shape: tuple[int, ...] | None = None
) -> UInt8[Tensor, "N C H W"]:
    """Grey or RGB images of one size; palettes are resolved, and transparent pixels become white.

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
    try:
        return decode(str(path), path.read_bytes())
    except ImageFileError as error:
        raise DataError(str(error)) from error


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
