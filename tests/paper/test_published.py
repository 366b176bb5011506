"""The published numbers: what is printed follows from what was logged."""

import math
import re
from importlib import resources

import pytest

from gramian.experiments.statistics import summarise
from paper.published import (
    experiments,
    printed_p_values,
    printed_row,
    printed_tables,
    quoted_rows,
)
from paper.statistics import p_as_text, welch_p

LOGGED = [
    pytest.param(row, id=f"{name}-{row.experiment}")
    for name, rows in printed_tables().items()
    for row in rows
    if row.experiment is not None
]


def assert_prints(value: float, printed: str) -> None:
    """Within half a unit of the last printed digit; half-way cases may go either way."""
    unit = 10.0 ** -len(printed.partition(".")[2])
    assert abs(value - float(printed)) <= 0.5 * unit + 1e-7


def assert_entry(values: tuple[float, ...], text: str) -> None:
    if text == "Fail":
        assert not values
        return
    summary = summarise(values)
    found = re.fullmatch(r"(-?[\d.]+)(?: ± ([\d.]+)| \(1 run\))", text)
    assert found is not None
    assert_prints(summary.mean, found[1])
    assert (summary.n == 1) == (found[2] is None) == text.endswith("(1 run)")
    if found[2] is not None:
        assert_prints(summary.standard_error, found[2])


def test_the_file_is_small_and_complete():
    path = resources.files("paper") / "published.json"
    assert len(path.read_bytes()) <= 150_000
    assert len(experiments()) == 13
    for key, experiment in experiments().items():
        assert experiment.key == key
        assert experiment.description
        assert [run.seed for run in experiment.runs] == [0, 1, 2, 3]
        assert experiment.data == ("cifar100" if "cifar100" in key else "cifar10")
        assert (experiment.seconds_per_epoch is None) == key.startswith("nn_")


@pytest.mark.parametrize("row", LOGGED)
def test_every_printed_entry_follows_from_the_logs(row):
    experiment = experiments()[row.experiment]
    assert_entry(tuple(100 * v for v in experiment.values("accuracy")), row.accuracy)
    assert_entry(experiment.values("log_likelihood"), row.log_likelihood)
    if row.failures is not None:
        assert row.failures == f"{len(experiment.failure_epochs)}/{len(experiment.runs)}"


@pytest.mark.parametrize("printed", printed_p_values(), ids=lambda p: f"{p.second}-{p.metric}")
def test_every_printed_p_value_follows_from_the_logs(printed):
    first, second = experiments()[printed.first], experiments()[printed.second]
    p = welch_p(first.values(printed.metric), second.values(printed.metric))
    assert p_as_text(p) == printed.printed


def test_the_five_p_values_and_one_that_is_not_in_the_paper():
    printed = [p.printed for p in printed_p_values()]
    assert printed == ["0.7634", "0.0001", "0.00002", "0.0009", "0.02953"]
    headline, half = experiments()["dkm_cifar10_headline"], experiments()["dkm_gamma_div2"]
    for metric, p in (("accuracy", 0.53624), ("log_likelihood", 0.011841)):
        assert welch_p(headline.values(metric), half.values(metric)) == pytest.approx(p, rel=1e-4)
    assert printed_row("dkm_gamma_div2") is None


def test_failures_and_their_epochs():
    epochs = {key: e.failure_epochs for key, e in experiments().items() if e.failure_epochs}
    assert epochs == {
        "dkm_no_taylor": (81,),
        "dkm_no_skr": (540, 635),
        "dkm_no_taylor_no_skr": (406, 655, 685),
        "dkm_no_skr_keep_jitter": (705, 571, 712),
        "dkm_zero_nu": (26, 26, 25, 26),
    }
    assert sum(map(len, epochs.values())) == 13


def test_quoted_rows_are_those_without_logs():
    quoted = {name: [row.accuracy for row in quoted_rows(name)] for name in printed_tables()}
    assert quoted == {
        "table1": ["92.69 ± 0.0600", "91.2", "88.92"],
        "table2": ["72.05 ± 0.2300"],
        "table3": [],
    }
    assert quoted_rows("our own") == ()
    assert [len(rows) for rows in printed_tables().values()] == [6, 4, 7]


@pytest.mark.parametrize("key", experiments())
def test_curves_end_where_the_runs_end(key):
    for run in experiments()[key].runs:
        curve = run.curve
        assert (curve.epochs[0], curve.epochs[-1]) == (1, run.epochs)
        assert list(curve.epochs) == sorted(set(curve.epochs))
        for name in ("train_accuracy", "test_accuracy"):
            values = getattr(curve, name)
            assert len(values) == len(curve.epochs)
            assert 0 <= min(values) <= max(values) <= 1
        for name in ("train_log_likelihood", "test_log_likelihood"):
            values = getattr(curve, name)
            assert len(values) == len(curve.epochs)
            assert max(values) <= 0
            assert all(map(math.isfinite, values))
        if run.accuracy is not None:
            assert abs(run.accuracy - curve.test_accuracy[-1]) < 0.004
