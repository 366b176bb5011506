"""Rules that keep the house in order."""

import ast
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gramian"
SOURCES = sorted(SOURCE.rglob("*.py"))
BESIDE = sorted(path for name in ("paper", "benchmarks") for path in (ROOT / name).rglob("*.py"))
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "paper" / "README.md"]


def test_no_two_files_have_the_same_name():
    """Commands apart: each is called what a user types."""
    names = Counter(path.stem for path in SOURCES if path.parent.name != "commands")
    del names["__init__"]
    assert [name for name, count in names.items() if count > 1] == []


def test_the_map_shows_every_file_as_it_is():
    made = runpy.run_path(str(ROOT / "docs" / "map.py"))["as_markdown"]()
    assert (ROOT / "docs" / "MAP.md").read_text() == made, "run python docs/map.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_file_that_the_docs_name_exists(page):
    """Source files by their path below src/gramian, others by theirs, links by all."""
    text = page.read_text()
    named = re.findall(
        r"`((?:gram|nn|train|experiments|tests|examples|paper|benchmarks|lab)/[\w/.]+?)`", text
    )
    for name in named:
        assert (SOURCE / name).exists() or (ROOT / name).exists(), f"{page.name} names {name}"
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_fault_has_its_test():
    table = (ROOT / "tests" / "FAULTS.md").read_text()
    named = re.findall(r"`((?:\w+/)*test_\w+\.py)::(\w+)`", table)
    assert len(named) > 60
    for file, name in named:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), f"{file}::{name}"
    rows = {row for row in re.findall(r"^\| ([ABC]\d+) \|", table, re.MULTILINE)}
    counts = {"A": 5, "B": 11, "C": 12}
    assert rows == {f"{kind}{n + 1}" for kind, count in counts.items() for n in range(count)}
    second = set(re.findall(r"^\| 2\.([ABCD]\d+) \|", table, re.MULTILINE))
    later = {"C13", "C14", "C15", "D1", "D2", "D5"}  # wishes
    counts = {"A": 4, "B": 7, "C": 22, "D": 5}
    assert second | later == {f"{k}{n + 1}" for k, count in counts.items() for n in range(count)}


def test_every_promise_has_its_tests():
    rows = (ROOT / "SECURITY.md").read_text().split("|---|---|---|\n")[1].split("\n\n")[0]
    for row in rows.splitlines():
        named = re.findall(r"`((?:\w+/)*test_\w+\.py)::(\w+)`", row)
        assert named, row
        for file, name in named:
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(), f"{file}::{name}"


def test_the_library_sets_nothing_global():
    forbidden = ["set_default_dtype", "torch.manual_seed(", "    print(", "basicConfig", "pyplot"]
    for path in SOURCES:
        text = re.sub(r"^ *(>>>|\.\.\.).*", "", path.read_text(), flags=re.MULTILINE)  # no examples
        assert not [word for word in forbidden if word in text], path
        if path.name != "tf32.py":  # for a time, which the user asked for
            assert "set_float32_matmul_precision" not in text, path


def test_images_are_opened_by_a_list_of_formats():
    """Pillow knows some sixty, of which one starts another program."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Image.open":
                assert "formats" in [keyword.arg for keyword in node.keywords], path


def test_the_readme_fits_on_a_screen():
    assert len((ROOT / "README.md").read_text().splitlines()) < 70


@pytest.mark.parametrize("page", ["README.md", "docs/API.md"])
def test_every_example_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for code in blocks:
        assert len(code.splitlines()) <= 13
        scope: dict[str, object] = {}
        exec(code, scope)
        probabilities = scope["probabilities"]
        assert probabilities.shape == (len(probabilities), probabilities.shape[1])
        assert abs(float(probabilities.sum()) - len(probabilities)) < 1e-3
