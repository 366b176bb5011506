"""The plots of a run: which there are, and that a known evaluation is not made again."""

import pytest
import torch

from gramian import DenseDKMConfig, Predictor
from gramian.experiments.plots import run_plots
from gramian.experiments.plots.run_plots import save_run_plots
from gramian.train.config import build_model
from gramian.train.data import Dataset
from gramian.train.data.scaling import RowScaler
from gramian.train.predict.evaluate import evaluate
from tests.samples import generator
from tests.train.tiny import trainer

ROWS = [{"epoch": 1, "objective": -1.0, "kl/stem": 0.1, "condition/stem": 9.0}]


@pytest.fixture(scope="module")
def classifier():
    run = trainer()
    run.model.initialise_(run.task.train.x.float()[:20], generator())
    return run.predictor, run.task.test.subset(range(12))


@pytest.fixture(scope="module")
def regression():
    x = torch.randn(20, 3, generator=generator())
    config = DenseDKMConfig(num_features=3, num_outputs=2, num_inducing=5, likelihood="gaussian")
    y = torch.randn(20, 2, generator=generator(1)) * 5 + 10
    model = build_model(config)
    model.initialise_(x, generator())
    model.likelihood.fit_targets_(y)
    return Predictor(model.eval(), config, RowScaler.fit(x)), Dataset(x, y)


def test_a_classifier_of_images_has_all_plots(classifier, tmp_path, monkeypatch):
    known = evaluate(*classifier)
    monkeypatch.setattr(run_plots, "evaluate", lambda *_: pytest.fail("evaluated again"))
    paths = save_run_plots(*classifier, ROWS, tmp_path, known)
    assert [path.stem for path in paths] == [
        "learning_curves", "kl_terms", "condition_numbers", "inducing_patches", "reliability",
        "confusion", "certain_images",
    ]  # fmt: skip
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_a_regression_shows_predicted_against_true(regression):
    predictor, data = regression
    names = dict(run_plots.run_plots(predictor, data, []))
    assert list(names) == ["predictions"]
    mean, var = predictor.mean_and_variance(data.x)
    first = names["predictions"].axes[0]
    inside = 100 * ((mean - data.y)[:, 0].abs() <= 2 * var[:, 0].sqrt()).double().mean()
    assert f"{inside:.1f} % within" in first.get_title()


def test_without_a_test_set_there_are_the_curves(classifier):
    names = [name for name, _ in run_plots.run_plots(classifier[0], None, ROWS[:0])]
    assert names == ["inducing_patches"]
