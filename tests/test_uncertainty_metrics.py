"""``gramian.metrics``: hand-made cases, slow loops, scikit-learn, and properties."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from sklearn.metrics import roc_curve

from gramian.metrics import (
    calibration,
    classification_scores,
    classwise_calibration_errors,
    detection,
    entropies,
    mutual_information,
    risk_coverage,
)
from gramian.nn.likelihoods.metric_sums import ClassificationMetrics


def predictions(num=200, classes=4, seed=0, sharpness=2.0):
    chance = np.random.default_rng(seed)
    logits = sharpness * chance.normal(size=(num, classes))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return p, np.array([chance.choice(classes, p=row) for row in p])


def test_scores_of_three_predictions_by_hand():
    p = np.array([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]])
    scores = classification_scores(p, np.array([0, 1, 1]), num_bins=10)
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["log_likelihood"] == pytest.approx(np.log([0.8, 0.4, 0.9]).mean())
    assert scores["brier"] == pytest.approx((2 * 0.04 + 2 * 0.36 + 2 * 0.01) / 3)
    assert scores["ece"] == pytest.approx((0.2 + 0.6 + 0.1) / 3)
    assert scores["aurc"] == pytest.approx((0 + 0 + 1 / 3) / 3)


def test_scores_are_those_of_the_sums_over_batches():
    p, y = predictions()
    sums = ClassificationMetrics(4)
    log_prob = torch.tensor(np.log(p[np.arange(len(y)), y]))
    for part in torch.arange(len(y)).split(70):
        n = part.numpy()
        sums.update(torch.tensor(p[n]), torch.tensor(y[n]), log_prob[n], log_prob[n])
    scores = classification_scores(torch.tensor(p), torch.tensor(y))
    for name in ("accuracy", "log_likelihood", "brier", "ece", "entropy"):
        assert scores[name] == pytest.approx(float(sums.compute()[name]), rel=1e-12)


def test_bins_of_equal_mass_have_equal_mass():
    p, y = predictions(num=203)
    found = calibration(p, y, num_bins=10, binning="mass")
    assert found.count.sum() == 203
    assert set(found.count) <= {20, 21}
    order = np.argsort(p.max(1))
    first = order[: found.count[0]]
    assert found.confidence[0] == pytest.approx(p.max(1)[first].mean())
    assert found.accuracy[0] == pytest.approx((p.argmax(1) == y)[first].mean())


def test_an_edge_belongs_to_the_bin_above():
    confidence = np.array([0.5, 0.74, 0.75, 0.76, 1.0])
    found = calibration(np.stack([confidence, 1 - confidence], 1), np.zeros(5, int), num_bins=4)
    assert found.count.tolist() == [2, 3]
    assert found.confidence == pytest.approx([0.62, 2.51 / 3])


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_right_probabilities_are_calibrated_and_wrong_ones_are_not(binning):
    p, y = predictions(num=20_000, sharpness=1.0)
    assert calibration(p, y, binning=binning).error < 0.015
    sharper = p**3 / (p**3).sum(1, keepdims=True)
    assert calibration(sharper, y, binning=binning).error > 0.1
    assert max(classwise_calibration_errors(p, y, binning=binning)) < 0.015
    assert min(classwise_calibration_errors(sharper, y, binning=binning)) > 0.03


def test_classwise_errors_by_a_loop():
    p, y = predictions()
    for c, found in enumerate(classwise_calibration_errors(p, y, num_bins=5)):
        expected = 0.0
        for k in range(5):
            inside = [n for n in range(len(y)) if min(int(p[n, c] * 5), 4) == k]
            if inside:
                gap = np.mean(p[inside, c]) - np.mean(y[inside] == c)
                expected += len(inside) / len(y) * abs(gap)
        assert found == pytest.approx(expected)


def test_risk_and_coverage_by_a_loop():
    p, y = predictions(num=50)
    found = risk_coverage(p, y)
    order = np.argsort(-p.max(1))
    for kept in range(1, 51):
        wrong = p.argmax(1)[order[:kept]] != y[order[:kept]]
        assert found.risk[kept - 1] == pytest.approx(wrong.mean())
    assert found.risk[-1] == pytest.approx((p.argmax(1) != y).mean())
    assert found.area == pytest.approx(found.risk.mean())


def test_one_confidence_for_all_gives_the_error_rate():
    p, y = predictions(num=40)
    found = risk_coverage(p, y, confidence=np.ones(40))
    assert found.risk == pytest.approx(np.full(40, (p.argmax(1) != y).mean()))


def test_another_order_of_the_data_changes_nothing():
    p, y = predictions(num=60)
    p = np.round(p, 1)  # many ties
    p /= p.sum(1, keepdims=True)
    order = np.random.default_rng(1).permutation(60)
    assert risk_coverage(p, y).area == pytest.approx(risk_coverage(p[order], y[order]).area)


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 40))
def test_detection_is_the_share_of_pairs_in_the_right_order(seed, num_like, num_unlike):
    chance = np.random.default_rng(seed)
    like = chance.integers(0, 6, num_like)  # with ties
    unlike = chance.integers(2, 9, num_unlike)
    found = detection(like, unlike)
    pairs = [(u > v) + 0.5 * (u == v) for u in unlike for v in like]
    assert found.auroc == pytest.approx(np.mean(pairs))
    truth = np.repeat([0, 1], [num_like, num_unlike])
    scores = np.concatenate([like, unlike])
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert found.fpr95 == pytest.approx(false[np.argmax(true >= 0.95 - 1e-12)])


def test_scores_that_tell_all_apart_and_nothing():
    perfect = detection([0.1, 0.2], [0.3, 0.4])
    assert (perfect.auroc, perfect.aupr, perfect.fpr95) == (1.0, 1.0, 0.0)
    nothing = detection(np.zeros(30), np.zeros(10))
    assert (nothing.auroc, nothing.aupr, nothing.fpr95) == (0.5, 0.25, 1.0)


def test_equal_confidences_in_bins_of_equal_mass_have_no_order():
    """Always 0.9 sure and right nine times of ten: calibrated, whoever comes first."""
    p = np.tile([0.9, 0.1], (100, 1))
    for y in (np.arange(100) < 10, np.arange(100) >= 90):
        assert calibration(p, y.astype(int), binning="mass").error == pytest.approx(0, abs=1e-12)


def test_mutual_information_is_the_disagreement_of_members():
    same = np.tile(predictions(num=5)[0], (3, 1, 1))
    assert mutual_information(same) == pytest.approx(np.zeros(5), abs=1e-12)
    sure = np.stack([np.eye(2)[[0, 0]], np.eye(2)[[1, 0]]])  # they disagree about the first
    assert mutual_information(sure) == pytest.approx([math.log(2), 0])


def test_entropies():
    found = entropies(np.array([[0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0]]))
    assert found == pytest.approx([math.log(4), 0])


@pytest.mark.parametrize(
    ("p", "y", "message"),
    [
        ([[2.0, -1.0]], [0], "0 or more"),
        ([[math.nan, 1.0]], [0], "no NaN"),
        ([[1.5, 3.0]], [0], "are these logits"),
        ([0.5, 0.5], [0], r"\[N, C\]"),
        (np.empty((0, 3)), np.empty(0, int), "N ≥ 1"),
        ([[0.5, 0.5]], [0, 1], r"shape \(1,\)"),
        ([[0.5, 0.5]], [2], "0..1"),
        ([[0.5, 0.5]], [-1], "0..1"),
    ],
)
def test_wrong_input_is_refused(p, y, message):
    with pytest.raises(ValueError, match=message):
        classification_scores(p, y)


def test_other_wrong_input():
    p, y = predictions(num=4)
    with pytest.raises(TypeError, match="class numbers"):
        classification_scores(p, y.astype(float))
    with pytest.raises((ValueError, TypeCheckError), match=r"width.*mass"):
        calibration(p, y, binning="depth")
    with pytest.raises(ValueError, match="num_bins"):
        calibration(p, y, num_bins=0)
    with pytest.raises(ValueError, match=r"shape \(4,\)"):
        risk_coverage(p, y, confidence=[1.0])
    with pytest.raises(ValueError, match="unlike has none"):
        detection([1.0], [])
    with pytest.raises(ValueError, match="like contains NaN"):
        detection([math.nan], [1.0])
    with pytest.raises(ValueError, match=r"\[M, N, C\]"):
        mutual_information(p)
    with pytest.raises(ValueError, match="probabilities must be"):
        mutual_information([[[2.0, -1.0]], [[0.5, 0.5]]])
