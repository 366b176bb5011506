"""The site: `make docs` builds it into docs/_build/html, offline, with warnings as errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert

from gramian._version import __version__

project = "Gramian"
author = "The Gramian developers"
release = __version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
templates_path: list[str] = []
html_theme = "furo"
html_title = f"Gramian {release}"
html_static_path = ["_static"]
html_theme_options = {"navigation_with_keys": True}
html_copy_source = False
html_show_copyright = False
html_math_renderer = "mathml"

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["myst.xref_missing"] if os.environ.get("GRAMIAN_DOCS_DRAFT") else []

nb_execution_mode = "cache"
nb_execution_timeout = 900  # seconds of a cell, on a busy machine
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads on busy cores wait for each other
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # a widget that no page shows
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_google_docstring = True
napoleon_use_rtype = False
# Shapes in annotations, such as Float[Tensor, "B C"], are text and not names to be looked up.
nitpicky = False


def skip(app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out what scikit-learn and dataclasses bring, and the fields that fitting sets."""
    brought = (getattr(obj, "__module__", None) or "").startswith("sklearn")
    return True if brought or name == "model_" or name.endswith("_request") else None


def plain_sections(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Headings of arguments as Napoleon knows them, before it looks."""
    for number, line in enumerate(lines):
        if line.strip().startswith("Args ("):
            lines[number] = "Args:"
        elif line.strip() == "Raises, when called:":
            lines[number] = "Raises:"


def inline_formula(writer: Any, node: Any) -> None:
    """A formula in a line as MathML, which browsers show without anything from elsewhere."""
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def formula(writer: Any, node: Any) -> None:
    """A formula by itself."""
    text = convert(node.astext(), display="block")
    writer.body.append(f'<div class="math" style="overflow-x: auto">{text}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
    app.connect("autodoc-process-docstring", plain_sections, priority=400)
    app.connect("autodoc-skip-member", skip)
