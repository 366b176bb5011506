"""Writes MAP.md, the map of all files, from the first sentence of each: ``python docs/map.py``."""

import ast
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SOURCE = ROOT / "src" / "gramian"

HEAD = """# The map

Every file of `src/gramian`, floor by floor from the ground, then of `paper` and `benchmarks`, which
are not in the wheel, with its first sentence. Made by
`python docs/map.py`; a test compares. [NOTATION.md](NOTATION.md) has the way of one image and of a
training step through them. Imports go only downwards, between the floors and inside them:
`pyproject.toml` has the contracts.
"""
FLOORS = {
    "gram": "Floor 1",
    "nn": "Floor 2",
    "train": "Floor 3",
    "experiments": "Floor 4",
}
BESIDE = ("paper", "benchmarks")


def as_markdown() -> str:
    """The text of MAP.md."""
    lines = [HEAD]
    for name, title in FLOORS.items():
        lines += [f"## {title}: `{name}`", "", *files_of(SOURCE / name)]
    for name in BESIDE:
        lines += [f"## `{name}`", "", *files_of(ROOT / name)]
    lines += ["## Beside the floors", "", "Used by anybody; imports nothing of ours.", ""]
    lines += ["| File | What is in it |", "|---|---|"]
    beside = sorted(path for path in SOURCE.glob("*.py") if not path.name.startswith("_"))
    lines += [f"| `{path.name}` | {first_sentence(path)} |" for path in beside]
    return "\n".join([*lines, ""])


def files_of(folder: Path) -> list[str]:
    """A folder's own text, and a table of its files; those of sub-folders after its own."""
    lines = [first_sentence(folder / "__init__.py"), "", "| File | What is in it |", "|---|---|"]

    def place(path: Path) -> tuple[bool, str, bool, str]:
        inside = path.parent.relative_to(folder.parent).as_posix()
        return "/" in inside, inside, path.name != "__init__.py", path.name

    for path in sorted(folder.rglob("*.py"), key=place):
        if path != folder / "__init__.py":
            shown = path.relative_to(folder.parent).as_posix().replace("/__init__.py", "/")
            bold = "**" if shown.endswith("/") else ""
            lines.append(f"| {bold}`{shown}`{bold} | {first_sentence(path)} |")
    return [*lines, ""]


def first_sentence(path: Path) -> str:
    """Of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    (DOCS / "MAP.md").write_text(as_markdown())
