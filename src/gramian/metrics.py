"""How good probabilities are, and what they know of what they do not know: for any model.

Probabilities [N, C] and labels [N] come as NumPy arrays or tensors; nothing else about the model
matters, so networks, ensembles and Gaussian processes can be measured by the same functions.
Numbers are computed in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import entr
from sklearn.metrics import average_precision_score, roc_auc_score

Array = npt.NDArray[Any]
Binning = Literal["width", "mass"]


def classification_scores(probabilities: Any, labels: Any, num_bins: int = 15) -> dict[str, float]:
    """The usual numbers at once: means over the data, log-likelihood and entropy in nats.

    ``brier`` sums squared errors over the classes (0 to 2); ``ece`` and ``ece_mass`` are errors of
    ``calibration`` with bins of equal width and of equal mass; ``classwise_ece`` is the mean over
    the classes; ``aurc`` is the area under ``risk_coverage``. All of labels [N] and probabilities
    [N, C].

    Example:
        >>> from gramian.metrics import classification_scores
        >>> scores = classification_scores([[0.8, 0.2], [0.4, 0.6]], labels=[0, 0])
        >>> {name: round(scores[name], 3) for name in ("accuracy", "log_likelihood", "brier")}
        {'accuracy': 0.5, 'log_likelihood': -0.57, 'brier': 0.4}
    """
    p, y = checked(probabilities, labels)
    with np.errstate(divide="ignore"):  # a probability of 0 for what happened is −∞
        log_likelihood = np.log(p[np.arange(len(y)), y]).mean()
    return {
        "accuracy": float((p.argmax(1) == y).mean()),
        "log_likelihood": float(log_likelihood),
        "brier": float(((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean()),
        "ece": calibration(p, y, num_bins).error,
        "ece_mass": calibration(p, y, num_bins, "mass").error,
        "classwise_ece": float(np.mean(classwise_calibration_errors(p, y, num_bins))),
        "entropy": float(entropies(p).mean()),
        "aurc": risk_coverage(p, y).area,
    }


# ---- calibration ----


@dataclass(frozen=True)
class Calibration:
    """Predictions in bins of their confidence; bins without predictions are left out.

    Attributes:
        confidence: mean of each bin.
        accuracy: share of each bin that is right.
        count: predictions in each bin.

    Example:
        >>> import numpy as np
        >>> from gramian.metrics import Calibration
        >>> bins = Calibration(np.array([0.6, 0.9]), np.array([0.5, 0.9]), np.array([10, 30]))
        >>> round(bins.error, 3)  # (10 · 0.1 + 30 · 0)/40
        0.025
    """

    confidence: Array
    accuracy: Array
    count: Array

    @property
    def error(self) -> float:
        """Σ_b count_b · abs(confidence_b − accuracy_b) / Σ_b count_b: the ECE."""
        gaps = np.abs(self.confidence - self.accuracy)
        return float((self.count * gaps).sum() / self.count.sum())


def calibration(
    probabilities: Any, labels: Any, num_bins: int = 15, binning: Binning = "width"
) -> Calibration:
    """Calibration of the most probable class.

    Bins of equal ``width`` split [0, 1]; bins of equal ``mass`` have as many predictions each, and
    say more where most confidences are near 1.

    Example:
        >>> from gramian.metrics import calibration
        >>> bins = calibration([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], labels=[0, 1, 1], num_bins=2)
        >>> bins.count, round(bins.error, 3)  # confidence 0.767, accuracy 0.667
        (array([3]), 0.1)
    """
    p, y = checked(probabilities, labels)
    return _in_bins(p.max(1), p.argmax(1) == y, num_bins, binning)


def classwise_calibration_errors(
    probabilities: Any, labels: Any, num_bins: int = 15, binning: Binning = "width"
) -> list[float]:
    """The calibration error of each class's own probability, whichever is the most probable.

    Example:
        >>> from gramian.metrics import classwise_calibration_errors
        >>> errors = classwise_calibration_errors([[0.9, 0.1], [0.3, 0.7]], labels=[0, 1])
        >>> [round(error, 3) for error in errors]  # (0.1 + 0.3)/2 for either class
        [0.2, 0.2]
    """
    p, y = checked(probabilities, labels)
    return [_in_bins(p[:, c], y == c, num_bins, binning).error for c in range(p.shape[1])]


def _in_bins(confidence: Array, right: Array, num_bins: int, binning: Binning) -> Calibration:
    if num_bins < 1:
        raise ValueError(f"num_bins must be 1 or more, got {num_bins}")
    if binning == "width":
        inner = np.arange(1, num_bins) / num_bins
        parts = np.searchsorted(inner, confidence, side="right")  # an edge belongs to the bin above
    elif binning == "mass":
        ranks = np.argsort(np.argsort(confidence, kind="stable"), kind="stable")
        parts = ranks * num_bins // len(confidence)
        right = _mean_of_ties(confidence, right)  # those that equals go to different bins with
    else:
        raise ValueError(f"binning must be width or mass, got {binning!r}")
    count = np.bincount(parts, minlength=num_bins)
    used = count > 0
    sums = (np.bincount(parts, weights=w, minlength=num_bins)[used] for w in (confidence, right))
    mean_confidence, accuracy = (total / count[used] for total in sums)
    return Calibration(mean_confidence, accuracy, count[used])


def _mean_of_ties(score: Array, values: Array) -> Array:
    """Each value as the mean over all with its score, so that their order makes no difference."""
    _, ties = np.unique(score, return_inverse=True)
    return np.asarray((np.bincount(ties, weights=values) / np.bincount(ties))[ties])


# ---- which predictions to trust ----


@dataclass(frozen=True)
class RiskCoverage:
    """What is left of the errors when the least certain predictions are left out.

    Attributes:
        coverage: share of the predictions that is kept, the most certain first.
        risk: share of errors among them.

    Example:
        >>> import numpy as np
        >>> from gramian.metrics import RiskCoverage
        >>> RiskCoverage(coverage=np.array([0.5, 1.0]), risk=np.array([0.0, 0.5])).area
        0.25
    """

    coverage: Array
    risk: Array

    @property
    def area(self) -> float:
        """The mean risk over all coverages; 0 is best, and chance gives the error rate."""
        return float(self.risk.mean())


def risk_coverage(probabilities: Any, labels: Any, confidence: Any = None) -> RiskCoverage:
    """Risk against coverage, by the largest probability or another ``confidence`` [N].

    Predictions of the same confidence come in together: each of them counts as their mean.

    Example:
        >>> from gramian.metrics import risk_coverage
        >>> curve = risk_coverage([[0.9, 0.1], [0.6, 0.4]], labels=[0, 1])
        >>> curve.coverage.tolist(), curve.risk.tolist()  # the uncertain one is wrong
        ([0.5, 1.0], [0.0, 0.5])
    """
    p, y = checked(probabilities, labels)
    sure = p.max(1) if confidence is None else _numbers(confidence, "confidence", len(y))
    wrong = (p.argmax(1) != y).astype(np.float64)
    shared = _mean_of_ties(sure, wrong)[np.argsort(-sure)]  # the most certain first
    ranks = np.arange(1, len(y) + 1)
    return RiskCoverage(ranks / len(y), np.cumsum(shared) / ranks)


@dataclass(frozen=True)
class Detection:
    """How well a score tells unlike data from data like those of the training set.

    Attributes:
        auroc: probability that an unlike point has the larger score; ½ is chance.
        aupr: average precision, unlike points being what is looked for.
        fpr95: share of like points that are taken for unlike where 95 % of the unlike are found.

    Example:
        >>> from gramian.metrics import detection
        >>> detection(like=[0.1, 0.2, 0.6], unlike=[0.5, 0.9])
        Detection(auroc=0.8333333333333334, aupr=0.8333333333333333, fpr95=0.3333333333333333)
    """

    auroc: float
    aupr: float
    fpr95: float


def detection(like: Any, unlike: Any) -> Detection:
    """Of scores that should be larger for ``unlike`` points than for ``like`` ones.

    Example:
        >>> from gramian.metrics import detection
        >>> detection(like=[0.1, 0.2], unlike=[0.5, 0.9])  # no mistake
        Detection(auroc=1.0, aupr=1.0, fpr95=0.0)
    """
    scores = [_numbers(values, name) for name, values in (("like", like), ("unlike", unlike))]
    for name, values in zip(("like", "unlike"), scores, strict=True):
        if len(values) == 0:
            raise ValueError(f"detection needs scores of both kinds, {name} has none")
    inside, outside = scores
    truth = np.repeat([0, 1], [len(inside), len(outside)])
    both = np.concatenate(scores)
    threshold = np.sort(outside)[len(outside) - int(np.ceil(0.95 * len(outside)))]
    return Detection(
        auroc=float(roc_auc_score(truth, both)),
        aupr=float(average_precision_score(truth, both)),
        fpr95=float((inside >= threshold).mean()),
    )


def entropies(probabilities: Any) -> Array:
    """−Σ_c p_c log p_c of each row, in nats: all that is uncertain about the class.

    Example:
        >>> from gramian.metrics import entropies
        >>> entropies([[0.5, 0.5], [1.0, 0.0]]).round(3)  # log 2, and nothing
        array([0.693, 0.   ])
    """
    return np.asarray(entr(as_probabilities(probabilities)).sum(1))


def mutual_information(members: Any) -> Array:
    """Entropy of the mean, less the mean entropy, of several predictions [M, N, C] for each point.

        H(1/M Σ_m p_m) − 1/M Σ_m H(p_m),  with the entropy H

    What is uncertain because the model is: 0 where all members say the same. Members are those of
    an ensemble, passes with dropout, or samples of q(f).

    Example:
        >>> from gramian.metrics import mutual_information
        >>> agree, differ = [0.5, 0.5], ([1.0, 0.0], [0.0, 1.0])
        >>> mutual_information([[agree, differ[0]], [agree, differ[1]]]).round(3)
        array([0.   , 0.693])
    """
    p = np.asarray(_array(members), dtype=np.float64)
    if p.ndim != 3 or p.shape[0] < 1:
        raise ValueError(f"members must be probabilities [M, N, C], got shape {p.shape}")
    as_probabilities(p.reshape(-1, p.shape[2]))
    return np.asarray(entr(p.mean(0)).sum(1) - entr(p).sum(2).mean(0))


# ---- input ----


def checked(probabilities: Any, labels: Any) -> tuple[Array, Array]:
    """Probabilities in float64 and labels as integers, or an error that says what is wrong.

    Example:
        >>> from gramian.metrics import checked
        >>> checked([[0.5, 0.5]], labels=[2])
        Traceback (most recent call last):
        ValueError: labels must be in 0..1, got 2 to 2
    """
    p, y = as_probabilities(probabilities), np.asarray(_array(labels))
    if y.shape != p.shape[:1]:
        raise ValueError(f"labels must have shape ({len(p)},), got {y.shape}")
    if not np.issubdtype(y.dtype, np.integer):
        raise TypeError(f"labels must be class numbers (integers), got {y.dtype}")
    if y.min() < 0 or y.max() >= p.shape[1]:
        raise ValueError(f"labels must be in 0..{p.shape[1] - 1}, got {y.min()} to {y.max()}")
    return p, y


def as_probabilities(probabilities: Any) -> Array:
    """[N, C] in float64, each row adding up to 1.

    Example:
        >>> from gramian.metrics import as_probabilities
        >>> as_probabilities([[2.0, -1.0]])
        Traceback (most recent call last):
        ValueError: probabilities must be 0 or more, and no NaN
    """
    p = np.asarray(_array(probabilities), dtype=np.float64)
    if p.ndim != 2 or p.shape[0] < 1 or p.shape[1] < 2:
        raise ValueError(f"probabilities must be [N, C] with N ≥ 1 and C ≥ 2, got shape {p.shape}")
    if not np.isfinite(p).all() or p.min() < 0:
        raise ValueError("probabilities must be 0 or more, and no NaN")
    if not np.allclose(p.sum(1), 1, atol=1e-3):
        raise ValueError(
            f"probabilities of a row must add up to 1, got {p.sum(1).min():g} to "
            f"{p.sum(1).max():g}: are these logits?"
        )
    return p


def _numbers(values: Any, what: str, length: int | None = None) -> Array:
    found = np.asarray(_array(values), dtype=np.float64)
    if found.ndim != 1 or (length is not None and len(found) != length):
        expected = "one number a data point" if length is None else f"shape ({length},)"
        raise ValueError(f"{what} must be {expected}, got shape {found.shape}")
    if np.isnan(found).any():
        raise ValueError(f"{what} contains NaN")
    return found


def _array(values: Any) -> Any:
    """A tensor as an array, wherever it is."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values
