import copy
import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import accuracy_score, brier_score_loss, confusion_matrix, log_loss

from gramian.nn.likelihoods.metric_sums import ClassificationMetrics, TargetMetrics


def predictions(num=200, num_classes=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(num, num_classes, generator=generator, dtype=dtype)
    labels = torch.randint(num_classes, (num,), generator=generator)
    log_p = logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
    return logits.softmax(1), labels, log_p, log_p.clamp(min=-3)


def targets(num=150, dtype=torch.float64):
    generator = torch.Generator().manual_seed(4)
    mean, y = torch.randn(2, num, 2, generator=generator, dtype=dtype)
    var = 0.2 + torch.rand(num, 2, generator=generator, dtype=dtype)
    m, s, t = mean.double().numpy(), var.double().sqrt().numpy(), y.double().numpy()
    return mean, var, y, torch.tensor(norm.logpdf(t, m, s).sum(1))


CASES = [
    pytest.param(lambda: ClassificationMetrics(5), predictions, id="classification"),
    pytest.param(lambda: TargetMetrics((2.0, 0.5)), targets, id="regression"),
]


def ece_by_loops(probabilities, labels, num_bins):
    total = 0.0
    for b in range(num_bins):
        low, high = b / num_bins, (b + 1) / num_bins
        gap = 0.0
        for p, y in zip(probabilities, labels, strict=True):
            if low <= p.max() < high or (b == num_bins - 1 and p.max() == 1):
                gap += p.max() - (p.argmax() == y)
        total += abs(gap)
    return total / len(labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_classification_agrees_with_scikit_learn(dtype):
    batch = predictions(dtype=dtype)
    metrics = ClassificationMetrics(5)
    metrics.update(*batch)
    values = metrics.compute()
    assert all(value.dtype == torch.float64 for name, value in values.items() if name != "num")
    p, y = batch[0].double().numpy(), batch[1].numpy()
    p /= p.sum(1, keepdims=True)  # scikit-learn insists on it
    expected = {
        "accuracy": accuracy_score(y, p.argmax(1)),
        "log_likelihood": -log_loss(y, p, labels=range(5)),
        "log_likelihood_clipped": batch[3].double().mean().item(),
        "ece": ece_by_loops(p, y, 15),
        "brier": sum(brier_score_loss(y == each, p[:, each]) for each in range(5)),
        "entropy": -(p * np.log(p)).sum(1).mean(),
        "num": 200,
    }
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert {k: float(v) for k, v in values.items()} == pytest.approx(expected, rel=tolerance)
    assert metrics.confusion.tolist() == confusion_matrix(y, p.argmax(1)).tolist()


def test_two_classes_keep_the_brier_score_of_many():
    p, y, *log_p = predictions(num_classes=2)
    metrics = ClassificationMetrics(2)
    metrics.update(p, y, *log_p)
    expected = 2 * brier_score_loss(y.numpy(), p[:, 1].numpy())
    assert metrics.compute()["brier"].item() == pytest.approx(expected)


@pytest.mark.parametrize("num_bins", [1, 4, 15, 1000])
def test_calibration_bins_take_the_ends_the_edges_and_may_be_empty(num_bins):
    confidence = torch.tensor([0.0, 1.0, 1.0, 0.5, 0.75, 0.75, 0.6], dtype=torch.float64)
    p = torch.stack([confidence, torch.zeros_like(confidence)], dim=1)
    y = torch.tensor([0, 0, 1, 1, 0, 1, 0])
    metrics = ClassificationMetrics(2, num_bins)
    metrics.update(p, y, torch.zeros(7), torch.zeros(7))
    expected = ece_by_loops(p.numpy(), y.numpy(), num_bins)
    assert metrics.compute()["ece"].item() == pytest.approx(expected, abs=1e-14)
    mean, accuracy, count = metrics.reliability()
    assert len(mean) == len(accuracy) == num_bins
    assert count.sum() == 7
    assert count[-1] == (7 if num_bins == 1 else 4 if num_bins == 4 else 2)
    if num_bins > 4:
        assert mean[0] == 0
        assert mean[-1] == 1
        assert accuracy[-1] == 0.5
        assert mean[1].isnan()
        assert accuracy[1].isnan()


def test_an_impossible_label_counts_without_bound_unless_clipped():
    metrics = ClassificationMetrics(2)
    certain = torch.tensor([[1.0, 0.0]])
    metrics.update(certain, torch.tensor([1]), torch.tensor([-math.inf]), torch.tensor([-15.94]))
    values = metrics.compute()
    assert values["log_likelihood"] == -math.inf
    assert values["log_likelihood_clipped"].item() == pytest.approx(-15.94)
    assert values["ece"] == 1
    assert values["brier"] == 2
    assert values["entropy"] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_regression_agrees_with_scipy(dtype):
    mean, var, y, log_prob = targets(dtype=dtype)
    metrics = TargetMetrics((2.0, 0.5))
    metrics.update(mean, var, y, log_prob)
    m, s, t = mean.double().numpy(), var.double().sqrt().numpy(), y.double().numpy()
    low, high = norm.interval(0.95, m, s)
    expected = {
        **{f"rmse_{c}": np.sqrt(((m - t) ** 2).mean(0)[c]) for c in range(2)},
        **{f"mae_{c}": np.abs(m - t).mean(0)[c] for c in range(2)},
        "rmse_standardised": np.sqrt((((m - t) / [2, 0.5]) ** 2).mean()),
        "mae_standardised": np.abs((m - t) / [2, 0.5]).mean(),
        "log_likelihood": norm.logpdf(t, m, s).sum(1).mean(),
        "coverage95": ((low <= t) & (t <= high)).mean(),
        "num": 150,
    }
    values = {name: float(value) for name, value in metrics.compute().items()}
    assert values == pytest.approx(expected, rel=1e-12)


def test_errors_of_one_target_are_in_its_units():
    mean, var, y, log_prob = targets()
    metrics = TargetMetrics((2.0,))
    metrics.update(mean[:, :1], var[:, :1], y[:, :1], log_prob)
    expected = (y - mean)[:, 0].square().mean().sqrt().item()
    assert metrics.compute()["rmse"].item() == pytest.approx(expected)
    assert "rmse_standardised" not in metrics.compute()


@pytest.mark.parametrize(("build", "draw"), CASES)
def test_halves_and_processes_add_up(build, draw):
    whole, halves, left, right = build(), build(), build(), build()
    batch = draw()
    whole.update(*batch)
    first, second = [x[:70] for x in batch], [x[70:] for x in batch]
    for part, alone in [(first, left), (second, right)]:
        halves.update(*part)
        alone.update(*part)
    expected = whole.compute()
    torch.testing.assert_close(halves.compute(), expected)
    left.merge(right)
    torch.testing.assert_close(left.sums, whole.sums)
    torch.testing.assert_close(left.compute(), expected)


@pytest.mark.parametrize(("build", "draw"), CASES)
def test_sums_are_float64_and_a_copy_is_independent(build, draw):
    metrics = build()
    metrics.update(*draw(dtype=torch.float32))
    assert metrics.sums["terms"].dtype == torch.float64
    twin = copy.deepcopy(metrics)
    twin.update(*draw(dtype=torch.float32))
    assert twin.compute()["num"] == 2 * metrics.compute()["num"]


def test_classification_refuses_what_does_not_fit():
    p, y, *log_p = predictions(num_classes=5)
    with pytest.raises(ValueError, match="4 columns"):
        ClassificationMetrics(4).update(p, y, *log_p)
    with pytest.raises(ValueError, match="labels must lie in"):
        ClassificationMetrics(5).update(p, y + 1, *log_p)
    with pytest.raises(ValueError, match="num_classes must be 2 or more"):
        ClassificationMetrics(1)
