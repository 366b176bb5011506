"""The command of the deep linear machine."""

import json

import pytest

from paper.__main__ import main


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--outputs", "2", "--nu", "3", "--layers", "2"],
        ["--outputs", "2", "--nu", "0.8", "--layers", "2", "--noise", "0.3", "--seed", "1"],
    ],
)
def test_training_ends_at_the_closed_form(capsys, words):
    assert main(["linear", *words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["layer"] for row in rows] == list(range(1, len(rows) + 1))
    assert all(row["difference when trained"] < 1e-5 for row in rows)


def test_the_table_and_what_has_no_optimum(capsys):
    assert main(["linear"]) == 0
    assert "condition number" in capsys.readouterr().out
    assert main(["linear", "--outputs", "1", "--nu", "0.5"]) == 2
    assert "no optimum" in capsys.readouterr().err
