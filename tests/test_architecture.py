"""Rules that keep the house in order."""

from pathlib import Path

import pytest

import gramian

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_files_stay_small(path):
    assert len(path.read_text().splitlines()) <= 300


def test_every_public_name_is_documented():
    api = (ROOT / "docs" / "API.md").read_text()
    missing = [name for name in gramian.__all__ if f"`{name}`" not in api]
    assert not missing


def test_every_module_of_the_walk_exists_and_none_is_forgotten():
    notation = (ROOT / "docs" / "NOTATION.md").read_text()
    floors = [path for path in SOURCES if path.parent.name in ("gram", "nn", "train")]
    helpers = {"__init__", "checks", "positive_definite", "errors", "linalg", "blocks", "windows"}
    for path in floors:
        if path.stem not in helpers:
            assert f"{path.parent.name}/{path.name}" in notation


def test_the_library_sets_nothing_global():
    forbidden = ["set_default_dtype", "torch.manual_seed(", "    print(", "basicConfig", "pyplot"]
    for path in SOURCES:
        text = path.read_text()
        assert not [word for word in forbidden if word in text], path
        if path.name != "engine.py":  # precision tf32, which the user asked for
            assert "set_float32_matmul_precision" not in text, path


def test_the_readme_fits_on_a_screen_and_its_example_runs(capsys):
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) < 70
    code = readme.split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) <= 13
    scope: dict[str, object] = {}
    exec(code, scope)
    probabilities = scope["probabilities"]
    assert probabilities.shape == (64, 10)
