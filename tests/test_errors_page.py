"""docs/ERRORS.md and the code say the same: every error class, every message, every address."""

import ast
import importlib
import json
import pickle
import pkgutil
import re
import traceback
from html import escape
from pathlib import Path

import numpy as np
import pytest

import gramian
import paper
from gramian import SKR, Bandwidth, ConvDKMConfig, DenseDKMConfig, NormChoice
from gramian.experiments.cli.commands.help import (
    best_entry,
    entries_of,
    page,
    pattern,
    sections_of,
)
from gramian.experiments.cli.main import main
from gramian.explained import Explained, MissingExtraError, section_of
from gramian.gram.errors import NotPSDError
from gramian.train.config import ConfigError
from gramian.train.data.images import _mixed
from tests.browser import Browser, needs_browser
from tests.test_architecture import BESIDE, ROOT, SOURCES

BUILT_IN = {"ValueError", "OSError", "MemoryError", "KeyboardInterrupt", "Unexpected"}


def error_classes() -> dict[str, type[Explained]]:
    """All error classes of the package and the paper that have a section, by name."""
    for package in (gramian, paper):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found, left = {}, [Explained]
    while left:
        children = left.pop().__subclasses__()
        left += children
        found |= {
            c.__name__: c for c in children if c.__module__.startswith(("gramian.", "paper."))
        }
    return {name: kind for name, kind in found.items() if not name.startswith("_")}


CLASSES = error_classes()


def template(node: ast.expr) -> str:
    """A text of the code, with … for what is put in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return template(node.left) + template(node.right)
    return "…"


def normal(text: str) -> str:
    return re.sub("…+", "…", " ".join(text.split()))


def calls() -> list[tuple[str, str]]:
    """Class and message of each error that the code makes."""
    found = []
    for path in [*SOURCES, *BESIDE]:
        nodes = list(ast.walk(ast.parse(path.read_text())))
        functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
        for node in nodes:
            name = getattr(getattr(node, "func", None), "id", None)
            if isinstance(node, ast.Call) and name in CLASSES and node.args:
                for each in written_by(node.args[0], functions):
                    message = normal(template(each))
                    if "__init__" not in vars(CLASSES[name]) and message != "…":  # not passed on
                        found.append((name, message))
    return sorted(set(found))


def written_by(node: ast.expr, functions: dict[str, ast.FunctionDef]) -> list[ast.expr]:
    """The text itself, or all that a function of the same file returns as one."""
    name = getattr(getattr(node, "func", None), "id", None)
    if name not in functions:
        return [node]
    returns = [each for each in ast.walk(functions[name]) if isinstance(each, ast.Return)]
    return [each.value for each in returns if each.value is not None]


ENTRIES = entries_of(page())


def test_every_error_class_has_a_section_and_every_section_a_class():
    assert set(sections_of(page())) == set(CLASSES) | BUILT_IN


def test_every_message_is_answered_in_its_section():
    answered = {(entry.section, normal(entry.message)) for entry in ENTRIES}
    made = calls()
    assert len(made) > 200
    assert [each for each in made if each not in answered] == []


def test_the_page_has_no_message_that_the_code_has_not():
    texts = set()
    for path in [*SOURCES, *BESIDE]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr | ast.Constant | ast.BinOp):
                texts.add(normal(template(node)))
    whole = "\n".join(texts)
    stale = [entry for entry in ENTRIES if normal(entry.message).strip("… ") not in whole]
    assert stale == []


def test_a_pasted_message_is_found():
    for entry in ENTRIES:
        pasted = f"gramian: {entry.message.replace('…', '0.17')}\n  and more"
        found = best_entry(pasted, ENTRIES)
        assert found.message == entry.message or pattern(found.message).search(entry.message)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("no"),
        MissingExtraError("a plot", "plots"),
        NotPSDError("K_ii", "f", 8, 3, -1e-5),
    ],
)
def test_a_traceback_ends_with_the_address_also_from_another_process(error):
    for each in (error, pickle.loads(pickle.dumps(error))):
        last = traceback.format_exception_only(each)[-1].strip()
        name = type(error).__name__.lower()
        assert last == f"docs/ERRORS.md#{name} (gramian help {name})"
        assert str(each) == str(error)


def test_an_error_from_outside_has_the_section_of_what_it_extends():
    class MyError(ConfigError):
        pass

    assert section_of(MyError("no")) == "ConfigError"
    assert section_of(FileNotFoundError("no")) == "OSError"
    assert section_of(ZeroDivisionError("no")) == "Unexpected"


@pytest.mark.parametrize(
    ("words", "code", "end"),
    [
        (["train", "--nonsense"], 2, "(see gramian train --help; docs/ERRORS.md#usageerror)"),
        (["nonsense"], 2, "(see gramian --help; docs/ERRORS.md#usageerror)"),
        (
            ["data", "fetch", "nonsense"],
            4,
            "\n  docs/ERRORS.md#datamissingerror (gramian help datamissingerror)",
        ),
    ],
)
def test_the_program_ends_with_the_address(words, code, end, capsys):
    assert main(words) == code
    assert capsys.readouterr().err.endswith(end + "\n")


def test_help_prints_a_section_or_the_answer_to_a_message(capsys):
    assert main(["help"]) == 0
    assert "NotPSDError" in capsys.readouterr().out
    assert main(["help", "NOTPSDERROR"]) == 0
    assert "SKR.jitter" in capsys.readouterr().out
    assert main(["help", "milestones are shares in (0, 1], got (3.0,)"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ConfigError\n\nmilestones are shares in (0, 1], got …\n")
    assert "half-way" in out
    assert main(["help", "there is no such thing"]) == 2


def test_refused_settings_and_what_a_function_words_have_answers(capsys):
    for make in (
        lambda: DenseDKMConfig(nu=-1.0),
        lambda: DenseDKMConfig(num_layers=-1),
        lambda: DenseDKMConfig(kernel="cubic"),
        lambda: DenseDKMConfig(kernel="arc_cosine", bandwidth=Bandwidth(2.0)),
        lambda: DenseDKMConfig(norm=NormChoice(momentum=2.0)),
        lambda: ConvDKMConfig(strides=(2,)),
        lambda: ConvDKMConfig(residual_weights=(0.0, 0.0)),
        lambda: SKR(gamma_fraction=-1.0),
        lambda: SKR(gamma_power=2.0),
    ):
        with pytest.raises(ValueError, match=" ") as caught:
            make()
        assert best_entry(str(caught.value), ENTRIES).section == "ConfigError", caught.value
    image = np.zeros((3, 4, 5), np.uint8)
    message = f"/data/a: {_mixed(Path('1.png'), image, Path('2.png'), image[:1])}"
    assert best_entry(message, ENTRIES).message.startswith("all images must have one size")


@needs_browser
def test_the_page_of_the_site_finds_a_pasted_message(tmp_path):
    rows = "".join(f"<tr><td><code>{escape(entry.message)}</code></td></tr>" for entry in ENTRIES)
    script = (ROOT / "docs" / "_static" / "errors.js").read_text()
    (tmp_path / "page.html").write_text(
        f"<meta charset=utf-8><article><input id=pasted><p id=found></p><table>{rows}</table>"
        f"</article><script>{script}</script>"
    )
    browser = Browser(tmp_path / "profile")
    try:
        browser.open((tmp_path / "page.html").as_uri())
        paste = "field.value = {}; field.dispatchEvent(new Event('input')); status.textContent"
        marked = "[...document.querySelectorAll('tr')].filter(r => r.style.outline)[0]?.textContent"
        message = "gramian: data must be the name of a data set or a path, got '' (see gramian"
        assert "marked below" in browser.evaluate(paste.format(json.dumps(message)))
        assert browser.evaluate(marked).startswith("data must be the name of a data set")
        assert "search" in browser.evaluate(paste.format("'what is this'"))
        assert browser.evaluate(marked) is None
        assert browser.happened("Runtime.exceptionThrown") == []
    finally:
        browser.close()


@pytest.mark.parametrize(
    ("pasted", "message"),
    [
        ("all images must have one size", "all images must have one size and be all grey"),
        ("gramian: X must hold lists of equal lengths", "… must hold lists of equal lengths"),
        ("all images must have one size and be all grey or all RGB, but a.png has 3×3 pixels",
         "all images must have one size and be all grey"),
        ("nothing like this at all", None),
        ("the weather must be fine today", None),
        ("must be", None),
        ("", None),
    ],
)  # fmt: skip
def test_a_message_is_known_by_its_beginning(pasted, message):
    found = best_entry(pasted, ENTRIES)
    assert found is None if message is None else found.message.startswith(message)
