"""The reference: every public name has an example that runs, and its place on one page."""

import doctest
import importlib
import inspect
import io
import re
import runpy
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

import gramian
from gramian import metrics
from gramian.experiments.cli.main import COMMANDS
from gramian.experiments.cli.train_options import descriptions, train_parser
from gramian.train.config import MODEL_CONFIGS

DOCS = Path(__file__).parents[1] / "docs"
OVERVIEW = (DOCS / "API.md").read_text()
COMMAND_TABLES = runpy.run_path(str(DOCS / "command_tables.py"))
SETTINGS_TABLES = runpy.run_path(str(DOCS / "settings_tables.py"))
METRICS = [
    name
    for name, value in vars(metrics).items()
    if getattr(value, "__module__", None) == metrics.__name__ and not name.startswith("_")
]


def documented(name: str) -> object:
    """What has the docstring of a public name: of a constant, the module that it comes from."""
    value = getattr(gramian, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return value
    return importlib.import_module(f"gramian.{gramian._HOME.get(name, '_version')}")


def run_example(name: str, has_it: object) -> None:
    """Run the examples of a docstring with nothing but what they import."""
    (test,) = doctest.DocTestFinder(recurse=False).find(has_it, name, module=False, globs={})
    assert any(name in part.source + part.want for part in test.examples), f"no example of {name}"
    said = io.StringIO()
    assert doctest.DocTestRunner().run(test, out=said.write).failed == 0, said.getvalue()


@pytest.mark.parametrize("name", gramian.__all__)
def test_every_public_name_has_an_example_that_runs(name):
    run_example(name, documented(name))


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_has_an_example_that_runs(name):
    run_example(name, getattr(metrics, name))


# ---- pages ----


def test_every_public_name_is_documented_in_one_place():
    pages = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    places = Counter(re.findall(r"^\.\. auto(?:class|function|data):: (\w+)$", pages, re.M))
    assert [name for name in gramian.__all__ if places[name] != 1] == []


def test_the_overview_links_every_name_to_its_page():
    rows = re.findall(r"^\| (`.*?`) \|.*\]\((reference/\w+\.md)\) \|$", OVERVIEW, re.M)
    homes = {name: page for names, page in rows for name in re.findall(r"`(\w+)`", names)}
    assert homes.keys() == set(gramian.__all__)
    for name, page in homes.items():
        assert re.search(rf":: {name}$", (DOCS / page).read_text(), re.M), f"{name}: {page}"


# ---- commands and settings ----


def test_the_page_of_commands_has_every_option():
    text = COMMAND_TABLES["commands_text"]()
    sections = dict(re.findall(r"^## ([\w ]+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    assert list(sections) == [*COMMANDS, "Exit codes"]
    parsers = {name: [COMMAND_TABLES["parser_of"](name)] for name in COMMANDS}
    parsers["train"] = [train_parser(kind, environment=False) for kind in MODEL_CONFIGS]
    for name in COMMANDS:
        assert f"```text\ngramian {name}" in sections[name]
        for parser in parsers[name]:
            for action in parser._actions:
                written = (action.option_strings or [action.dest.upper()])[0]
                assert f"| `{written}" in sections[name] or written == "-h", f"{name} {written}"


def test_every_setting_has_a_meaning_and_its_row():
    classes = SETTINGS_TABLES["settings_classes"]()
    assert {"TrainConfig", "LRFactors", "ConvDKMConfig", "DenseDKMConfig", "NetworkConfig"} < {
        each.__name__ for each in classes
    }
    shown = (DOCS / "reference" / "configuration.md").read_text()
    for settings in classes:
        assert re.search(rf":: {settings.__name__}$", shown, re.M)
        table = "\n".join(SETTINGS_TABLES["settings_table"](settings))
        for field in fields(settings):
            assert len(descriptions(settings).get(field.name, "")) > 3, f"{settings}.{field.name}"
            assert f"* - ``{field.name}``" in table
