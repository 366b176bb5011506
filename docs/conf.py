"""The site: `make docs` builds it into docs/_build/html, offline, with warnings as errors."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert

import gramian
from gramian import __version__

sys.path.insert(0, str(Path(__file__).parent))
from command_tables import OPTIONS, commands_text
from settings_tables import settings_classes, settings_table

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
html_css_files = ["gramian.css"]

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

python_maximum_signature_line_length = 150
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # the sentences have the shapes
# Shapes in annotations, such as Float[Tensor, "B C"], are text and not names to be looked up.
nitpicky = False


def skip(app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out what scikit-learn and dataclasses bring, and the fields that fitting sets."""
    brought = (getattr(obj, "__module__", None) or "").startswith("sklearn")
    return True if brought or name == "model_" or name.endswith("_request") else None


def plain_sections(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Docstrings as Napoleon knows them, before it looks: settings as a table, formulas as text."""
    if what == "data":  # of a constant, the text of the module that it comes from
        home = importlib.import_module(
            f"gramian.{gramian._HOME.get(name.split('.')[1], '_version')}"
        )
        lines[:] = [*inspect.getdoc(home).splitlines(), ""]
    made: list[str] = []
    if what in ("attribute", "data", "property"):  # Napoleon takes a first line "a: b" for a type
        made += ["..", ""]
    last, args = "", False  # the last line that is not empty; whether this is in a table's place
    for line in lines:
        if line.startswith("Args"):
            args = obj in settings_classes()
            made += settings_table(obj) if args else ["Args:"]
        elif line == "Raises, when called:":
            made.append("Raises:")
        elif not (args and line[:1] in ("", " ")):
            args = False
            if line.startswith("    ") and not made[-1] and not last.startswith(" "):
                made += [".. code-block:: text", ""]
            made.append(line)
        last = line or last
    lines[:] = made


def no_signature(app: Any, what: str, name: str, obj: Any, *rest: Any) -> tuple[str, None] | None:
    """Settings have a table instead."""
    return ("", None) if obj in settings_classes() else None


def put_options(app: Any, page: str, source: list[str]) -> None:
    """Options of the commands, where a page wants them."""
    if OPTIONS in source[0]:
        source[0] = source[0].replace(OPTIONS, commands_text())


def always_made(*rest: Any) -> list[str]:
    """Pages that change with the code, and not with a file that Sphinx watches."""
    return ["reference/commands"]


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
    app.connect("autodoc-process-signature", no_signature)
    app.connect("autodoc-skip-member", skip)
    app.connect("source-read", put_options)
    app.connect("env-get-outdated", always_made)
