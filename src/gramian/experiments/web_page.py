"""HTML pages that hold everything themselves: style, script, data and pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

# Nothing may be loaded from anywhere, whatever a label contains.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render(
    package: str,
    template: str,
    style: str,
    script: str | None = None,
    filters: Mapping[str, Callable[..., Any]] | None = None,
    policy: str = POLICY,
    **values: Any,
) -> str:
    """A page from files of a package; ``values`` are escaped; ``facts_json`` is JSON.

    Args:
        package: where the files are.
        template: of the page.
        style: CSS.
        script: JavaScript, or None.
        filters: more filters for the template.
        policy: what the page may load.
        values: what the template names.
    """

    def resource(name: str) -> str:
        return resources.files(package).joinpath(name).read_text(encoding="utf-8")

    pages = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    pages.filters |= dict(filters or {})
    if "facts_json" in values:
        values["facts_json"] = Markup(as_script_json(values["facts_json"]))
    return pages.from_string(resource(template)).render(
        policy=policy,
        style=Markup(resource(style)),
        script=Markup("" if script is None else resource(script)),
        **values,
    )


def as_script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no name of a class can end it."""
    text = json.dumps(value, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
