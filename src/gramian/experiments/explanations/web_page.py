"""HTML pages that hold everything themselves, and images as parts of them."""

from __future__ import annotations

import base64
import io
import json
import math
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import Environment
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

# Nothing may be loaded from anywhere, whatever a label contains.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render(template: str, script: str | None, **values: Any) -> str:
    """A page from its template and script; ``facts`` are JSON that the script reads."""
    pages = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    facts = values.pop("facts", None)
    return pages.from_string(resource(template)).render(
        policy=POLICY,
        style=Markup(resource("explanations.css")),
        script=Markup("" if script is None else resource(script)),
        facts=Markup(as_script_json(facts)),
        **values,
    )


def as_script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no name of a class can end it."""
    text = json.dumps(value, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def resource(name: str) -> str:
    """The text of a file beside this one."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def data_url(image: Image.Image) -> str:
    """An image as part of a page."""
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


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
