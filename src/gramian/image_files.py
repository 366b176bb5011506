"""Image files: the formats that are read, and what is checked before a pixel is decoded.

Without PyTorch, so that a process that only decodes starts at once.
"""

from __future__ import annotations

import io
import re

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = {
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "JPEG": (".jpeg", ".jpg"),
    "PNG": (".png",),
    "PPM": (".pgm", ".ppm"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
"""What is opened as an image, by Pillow's names, with the suffixes of such files."""
SUFFIXES = tuple(suffix for suffixes in FORMATS.values() for suffix in suffixes)
MOST_PIXELS = 30_000_000  # of one image
MOST_SCANS, MOST_SEGMENTS = 100, 10_000  # of one JPEG; each scan is a pass over all pixels
GREY = ("L", "1", "LA", "La")
DEEP = ("I", "F")  # more than 8 bits per channel; Pillow would clip them, not scale them
TRANSPARENT = ("LA", "La", "PA", "RGBA", "RGBa")
_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])", re.DOTALL)


class ImageFileError(ValueError):
    """An image file cannot be used; the message says why."""


def decode(name: str, content: bytes, most_pixels: int | None = None) -> npt.NDArray[np.uint8]:
    """Decode an image file to [C, H, W], grey or RGB, upright, on white where it is transparent.

    Raises:
        ImageFileError: the format is not in ``FORMATS``, or the file is damaged or too large.
    """
    try:
        _check_bytes(name, content)
        with Image.open(io.BytesIO(content), formats=list(FORMATS)) as image:
            _check_header(name, image, most_pixels or MOST_PIXELS)
            pixels = np.array(_opaque(ImageOps.exif_transpose(image)))
    except ImageFileError:
        raise
    except UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        raise ImageFileError(
            f"{name} cannot be read as an image: it is damaged, or its format is none of {known}"
        ) from error
    except Exception as error:  # the decoders raise anything at all for a damaged file
        raise ImageFileError(f"{name} cannot be read as an image: {error}") from error
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _opaque(image: Image.Image) -> Image.Image:
    """The image in grey or RGB, with white behind whatever is transparent."""
    grey = image.mode in GREY
    mode = "L" if grey else "RGB"
    if image.mode not in TRANSPARENT and "transparency" not in image.info:
        return image.convert(mode)
    image = image.convert("LA" if grey else "RGBA")
    opaque = Image.new(mode, image.size, "white")
    opaque.paste(image.convert(mode), mask=image.getchannel("A"))
    return opaque


def _check_bytes(name: str, content: bytes) -> None:
    """Refuse files that would keep a decoder busy for hours, though they are small."""
    if content[:2] in (b"P1", b"P2", b"P3"):
        raise ImageFileError(f"{name} is a PPM file of text: save it as binary PPM, or as PNG")
    if content[:2] != b"\xff\xd8":
        return
    scans = segments = 0
    at = 2
    while (found := _MARKER.search(content, at)) and found[1] != b"\xd9":  # the end of the image
        at = found.end() + int.from_bytes(content[found.end() : found.end() + 2], "big")
        segments += 1
        scans += found[1] == b"\xda"
        if scans > MOST_SCANS or segments > MOST_SEGMENTS:
            raise ImageFileError(
                f"{name} is a JPEG of more than {MOST_SCANS} scans or {MOST_SEGMENTS:,} segments: "
                "save it again"
            )


def _check_header(name: str, image: Image.Image, most_pixels: int) -> None:
    """Refuse what a conversion to 8 bits would change silently, and what would fill the memory."""
    if image.width * image.height > most_pixels:
        raise ImageFileError(
            f"{name} has {image.width}×{image.height} pixels, more than {most_pixels:,}: resize it"
        )
    if image.mode.startswith(DEEP):
        raise ImageFileError(
            f"{name} has more than 8 bits per channel (mode {image.mode}): save it with 8 bits"
        )
    if getattr(image, "is_animated", False):  # known without a search for all of them
        raise ImageFileError(f"{name} holds several images: save each as a file of its own")
