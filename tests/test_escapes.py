"""Names from files do nothing to a terminal or a spreadsheet."""

import csv
import io
import json
import logging
import shutil

import numpy as np
import pytest
from PIL import Image

from gramian.experiments.cli.main import fail, main, set_up_logging
from gramian.experiments.cli.terminal import show_metrics
from gramian.experiments.escapes import csv_cell, printable
from gramian.train.pretrained import pretrained

NAMES = [
    "\x1b]0;x\x07",
    "=cmd|' /C calc'!A0",
    "a\n=1",
    "-1",
    "+x",
    "@y",
    "\u202eabc",
    "b",
    "c",
    "d",
]


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("cat ü 猫 👩‍🔬", "cat ü 猫 👩‍🔬"),
        ("\x1b[31m", r"\x1b[31m"),
        ("a\r\nb\tc\x7f\x9b", r"a\r\nb\tc\x7f\x9b"),
        ("\u2028\u202e\udc80", r"\u2028\u202e\udc80"),
    ],
)
def test_control_characters_become_escapes(text, escaped):
    assert printable(text) == escaped
    assert printable(f"{text}\n", keep="\n").endswith("\n")


@pytest.mark.parametrize(
    ("cell", "escaped"),
    [
        ("=1+1", "'=1+1"), ("+x", "'+x"), ("-x", "'-x"), ("@x", "'@x"), ("\t=1", r"\t=1"),
        ("-1", "-1"), ("+1.5e3", "+1.5e3"), (-1.5, -1.5), ("cat", "cat"), ("a\n=1", r"a\n=1"),
    ],
)  # fmt: skip
def test_cells_are_no_formulas_and_numbers_are_left(cell, escaped):
    assert csv_cell(cell) == escaped


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A saved model with class names of a stranger."""
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(pretrained()["digits"] / "model", tmp_path / "model")
    description = json.loads((folder / "config.json").read_text()) | {"class_names": NAMES}
    del description["digest"]
    (folder / "config.json").write_text(json.dumps(description))
    np.savez("x.npz", x=np.zeros((9, 1, 8, 8), np.uint8))
    return folder


def is_harmless(text):
    return all(character.isprintable() or character == "\n" for character in text)


def test_predictions_of_any_class_names(model, capsys):
    name = "\x1b[31m=1.png"
    Image.new("L", (8, 8)).save(name)
    assert main(["predict", "model", name, "--quiet"]) == 0
    out = capsys.readouterr().out
    assert is_harmless(out)
    header, row = csv.reader(io.StringIO(out))
    assert (header[0], header[5:7]) == ("input", [r"p(\x1b]0;x\x07)", "p(=cmd|' /C calc'!A0)"])
    assert row[0] == r"\x1b[31m=1.png"
    assert not any(cell.startswith(("=", "+", "@", "\t", "\r")) for cell in [*header, *row])


@pytest.mark.parametrize(
    "words",
    [
        ["info", "model"],
        ["evaluate", "model", "--data", "digits"],
        ["evaluate", "model\x1b[31m", "--data", "digits"],
        ["predict", "model", "\x1b[31m.npz"],
        ["evaluate", "\x1b[31m[bold]x"],
    ],
)
def test_no_command_prints_control_characters(model, capsys, words):
    shutil.copytree("model", "model\x1b[31m")
    main(words)
    assert is_harmless("".join(capsys.readouterr()))


def test_messages_notes_and_titles_are_escaped(capsys):
    set_up_logging(quiet=False)
    logging.getLogger("gramian").info("read %s\nand", "\x1b[31m")
    fail("there is no \x1b[31m\nfile", 1, "OSError")
    show_metrics("[bold]x\x1b[31m", {"[red]test\x07": {"num": 3.0}})
    out, err = capsys.readouterr()
    assert is_harmless(out + err)
    assert r"read \x1b[31m" + "\nand\n" in err
    assert "[bold]x\\x1b[31m" in out
    assert "[red]test\\x07" in out
