"""Figures on condition numbers: parity with the published curves, stopping, failing, drawing."""

import json
import os
import signal
import sys
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader

from gramian.experiments.pool import JobsFailed
from gramian.gram.blocks import Marginals
from gramian.gram.errors import NotPSDError
from gramian.nn.likelihoods import Categorical
from gramian.train.record.checkpoint import CheckpointError
from gramian.train.runtime.signals import Stopped
from paper.conditions.sine_toy import Toy, TwoClasses
from paper.conditions.sweep import FIGURES, Figure, load_published
from paper.conditions.sweep_runs import Task, run_figure, tasks_of, train_curve

FIGURE = FIGURES["figure-conditions"]
ROWS = [(panel, curve) for panel in FIGURE.panels for curve in panel.curves]
GAMMA = FIGURE.panels[0]
EPOCHS = 6
SMALL = Figure("small", "γ = ∞ and P/10", EPOCHS, (replace(GAMMA, curves=GAMMA.curves[::2]),))


def numbers(folder, panel="gamma", curve="gamma_10"):
    result = json.loads((folder / panel / curve / "conditions.json").read_text())
    return result["condition_numbers"]


@pytest.fixture
def task(tmp_path):
    return tasks_of(SMALL, tmp_path, EPOCHS)[1]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The small figure, trained and drawn without interruption."""
    folder = tmp_path_factory.mktemp("small")
    run_figure(SMALL, folder, quiet=True)
    return folder


@pytest.mark.parametrize(("panel", "curve"), ROWS, ids=[f"{p.key}-{c.key}" for p, c in ROWS])
def test_published_condition_numbers(panel, curve):
    before = torch.random.get_rng_state()
    epochs = 60 if panel.key == "gamma" else 20
    expected = load_published()[panel.published].first_61[curve.published][:epochs]
    toy = Toy(curve)
    for _ in range(epochs):
        toy.train_epoch()
    # G starts at K, where the gradient of ν · KL is round-off times ν: at ν = 10⁶ the last bit of V
    # decides steps of Adam, and moves these condition numbers by 10⁻⁴.
    rounding = panel.key == "nu_taylor" and curve.nu == 1e6
    assert toy.conditions == pytest.approx(expected, rel=1e-3 if rounding else 1e-5)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_every_curve_has_its_published_row():
    published = load_published()
    assert [len(panel.curves) for panel in FIGURE.panels] == [4, 9, 9]
    for figure in FIGURES.values():
        for panel in figure.panels:
            rows = [curve.published for curve in panel.curves]
            assert rows == list(published[panel.published].rows)
            assert [curve.data_seed for curve in panel.curves] == list(range(len(rows)))
            assert len({curve.key for curve in panel.curves}) == len(rows)


def test_the_order_is_that_of_a_data_loader():
    toy = Toy(SMALL.panels[0].curves[0])
    toy.generator.manual_seed(5)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        for _ in range(2):
            (batch,) = DataLoader(range(256), batch_size=256, shuffle=True)
            assert torch.equal(toy._order(), batch)
        assert torch.equal(toy.generator.get_state(), torch.random.get_rng_state())


def test_two_classes_are_categorical():
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    q = Marginals(mean, torch.full((7, 1), 0.3, dtype=torch.float64))
    noise = torch.randn(5, 7, 2, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 0, 0, 1, 0])
    settings = (2, 5, "monte_carlo")
    expected = Categorical(*settings).expected_log_prob(q, y, noise)
    torch.testing.assert_close(TwoClasses(*settings).expected_log_prob(q, y, noise), expected)


def test_folder_and_figure(small):
    experiment = json.loads((small / "experiment.json").read_text())
    assert (experiment["name"], experiment["kind"]) == ("small", "conditions")
    assert experiment["title"] == SMALL.title
    (panel,) = experiment["panels"]
    assert (panel["key"], panel["published"]) == ("gamma", "gamma_10000")
    row = {"key": "gamma_10", "label": "γ = P/10", "published_row": "10.0"}
    assert panel["curves"][1] == row
    result = json.loads((small / "gamma" / "gamma_10" / "conditions.json").read_text())
    assert len(result["condition_numbers"]) == EPOCHS
    assert result["failure"] is None
    assert result["seconds"] > 0
    assert (result["config"]["gamma"], result["config"]["data_seed"]) == (10, 2)
    assert (small / "figure.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert (small / "figure.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_and_the_rest_gives_the_same_numbers(tmp_path, small, monkeypatch, number):
    train_epoch = Toy.train_epoch

    def signalled(toy):
        train_epoch(toy)
        if len(toy.conditions) == 3:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(Toy, "train_epoch", signalled)
        with pytest.raises(Stopped, match=number.name):
            run_figure(SMALL, tmp_path, quiet=True)
    assert not (tmp_path / "figure.png").exists()
    run_figure(SMALL, tmp_path)
    for curve in ("gamma_inf", "gamma_10"):
        assert numbers(tmp_path, curve=curve) == numbers(small, curve=curve)


def test_a_finished_curve_is_not_repeated(small, monkeypatch, caplog):
    fail_in_epoch(monkeypatch, 0, AssertionError("trained again"))
    caplog.set_level("INFO", "gramian")
    run_figure(SMALL, small, epochs=3)
    assert len([line for line in caplog.messages if line.endswith("(done before)")]) == 2


def test_processes_give_the_same_numbers_and_an_error_in_one_reaches_the_caller(tmp_path, small):
    folder = tmp_path / "gamma" / "gamma_inf"
    folder.mkdir(parents=True)
    (folder / "conditions.json").write_text("{")
    with pytest.raises(JobsFailed, match=r"gamma/gamma_inf \(.*gamma_inf/conditions\.json"):
        run_figure(SMALL, tmp_path, jobs=2, quiet=True)
    assert numbers(tmp_path) == numbers(small)


def test_a_numerical_failure_is_recorded_and_the_others_go_on(tmp_path, small, monkeypatch):
    error = NotPSDError("K_ii", "float64", 100, 7, -1e-9)
    with monkeypatch.context() as patch:
        fail_in_epoch(patch, 2, error, only=None)
        run_figure(SMALL, tmp_path, quiet=True)
    result = json.loads((tmp_path / "gamma" / "gamma_inf" / "conditions.json").read_text())
    assert result["condition_numbers"] == numbers(small, curve="gamma_inf")[:2]
    assert result["failure"]["epoch"] == 2
    assert "not positive definite" in result["failure"]["reason"]
    assert numbers(tmp_path) == numbers(small)
    assert (tmp_path / "figure.png").exists()
    run_figure(SMALL, tmp_path, quiet=True)
    assert len(numbers(tmp_path, curve="gamma_inf")) == 2


def test_not_a_number_is_a_failure(task):
    toy = Toy(task.curve)
    with torch.no_grad():
        toy.model.output.q_mean[0, 0] = torch.nan
    with pytest.raises(ArithmeticError, match=r"NaN|not finite"):
        toy.train_epoch()


def test_a_damaged_result_is_named(task):
    train_curve(task)
    (task.folder / "conditions.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"conditions\.json is damaged; remove it"):
        train_curve(task)


def test_files_of_another_curve_are_refused(task):
    train_curve(task)
    other = Task(task.name, replace(task.curve, nu=1.0), task.folder, EPOCHS)
    with pytest.raises(CheckpointError, match="other settings"):
        train_curve(other)


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"jobs": 0}])
def test_wrong_numbers_are_refused(tmp_path, wrong):
    with pytest.raises(ValueError, match="must be positive"):
        run_figure(SMALL, tmp_path, **wrong)


def test_without_matplotlib_nothing_is_trained(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "paper.conditions.conditions_figure", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'gramian\[plots\]'"):
        run_figure(SMALL, tmp_path)
    assert not list(tmp_path.iterdir())


def fail_in_epoch(patch, epoch, error, only=...):
    """Let the training of all curves, or of those with γ = ``only``, fail in an epoch."""
    train_epoch = Toy.train_epoch

    def failing(toy):
        if len(toy.conditions) == epoch and only in (..., toy.curve.gamma):
            raise error
        train_epoch(toy)

    patch.setattr(Toy, "train_epoch", failing)
