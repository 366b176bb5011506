"""Writes MAP.md, the map of all files, from the first sentence of each: ``python docs/map.py``."""

import ast
from pathlib import Path

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "gramian"

HEAD = """# The map

Every file of `src/gramian`, floor by floor from the ground, with its first sentence. Made by
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


def as_markdown() -> str:
    """The text of MAP.md."""
    lines = [HEAD]
    for name, title in FLOORS.items():
        lines += [f"## {title}: `{name}`", "", first_sentence(SOURCE / name / "__init__.py"), ""]
        lines += ["| File | What is in it |", "|---|---|"]
        for path in sorted((SOURCE / name).rglob("*.py"), key=by_folder):
            if path != SOURCE / name / "__init__.py":
                shown = path.relative_to(SOURCE).as_posix().replace("/__init__.py", "/")
                bold = "**" if shown.endswith("/") else ""
                lines.append(f"| {bold}`{shown}`{bold} | {first_sentence(path)} |")
        lines.append("")
    lines += ["## Beside the floors", "", "Used by anybody; imports nothing of ours.", ""]
    lines += ["| File | What is in it |", "|---|---|"]
    beside = sorted(path for path in SOURCE.glob("*.py") if not path.name.startswith("_"))
    lines += [f"| `{path.name}` | {first_sentence(path)} |" for path in beside]
    return "\n".join([*lines, ""])


def by_folder(path: Path) -> tuple[bool, str, bool, str]:
    """Files of a folder before its sub-folders; a folder's own text first."""
    folder = path.parent.relative_to(SOURCE).as_posix()
    return "/" in folder, folder, path.name != "__init__.py", path.name


def first_sentence(path: Path) -> str:
    """Of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    (DOCS / "MAP.md").write_text(as_markdown())
