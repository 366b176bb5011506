"""Images as pictures, for pages that hold everything themselves."""

from __future__ import annotations

import base64
import io
import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def data_url(image: Image.Image) -> str:
    """An image as part of a page."""
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def side_by_side(urls: list[str], gap: int = 8) -> Image.Image:
    """Pictures of a page in a row, on white."""
    pictures = [
        Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])), formats=["PNG"]).convert(
            "RGB"
        )
        for url in urls
    ]
    width = sum(picture.width for picture in pictures) + gap * (len(pictures) - 1)
    row = Image.new("RGB", (width, max(picture.height for picture in pictures)), "white")
    left = 0
    for picture in pictures:
        row.paste(picture, (left, 0))
        left += picture.width + gap
    return row


def as_picture(image: NDArray[np.uint8]) -> Image.Image:
    """[C, H, W] with one or three channels as a picture."""
    if image.shape[0] not in (1, 3):
        image = image[:1]
    return Image.fromarray(image[0] if len(image) == 1 else np.moveaxis(image, 0, -1))


def enlarged(image: Image.Image, side: int) -> Image.Image:
    """A picture of about ``side`` pixels, in which the old pixels can be seen."""
    factor = max(1, side // max(image.size))
    size = (image.width * factor, image.height * factor)
    return image.resize(size, Image.Resampling.NEAREST)


def sprite_of(images: NDArray[np.uint8]) -> Image.Image:
    """Many small pictures in one, row by row."""
    columns = math.ceil(math.sqrt(len(images)))
    height, width = images.shape[2:]
    mode = "RGB" if images.shape[1] == 3 else "L"
    sheet = Image.new(mode, (columns * width, math.ceil(len(images) / columns) * height))
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        sheet.paste(as_picture(image), (column * width, row * height))
    return sheet
