"""Metrics of predictions, as float64 sums: exact over batches, and added up over processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64, Int64, Real
from torch import Tensor

from gramian.nn.checks import check_labels

Z95 = 1.959963984540054  # the standard normal lies within ±Z95 with probability 0.95


class Metrics(ABC):
    """Sums over data points, of which ``compute`` makes numbers. A point of weight 2 counts as two.

    ``sums`` are by name, float64 unless they count; those of several processes add up (``merge``).
    """

    sums: dict[str, Tensor]

    @abstractmethod
    def compute(self) -> dict[str, Tensor]:
        """The metrics by name, as float64 scalars, except the count ``num``."""

    def add(self, **terms: Tensor) -> None:
        """Add to the sums."""
        for name, value in terms.items():
            self.sums[name] = self.sums[name].to(value.device) + value

    def merge(self, other: Metrics) -> None:
        """Add the sums of another accumulator of the same kind."""
        self.add(**other.sums)


class ClassificationMetrics(Metrics):
    """Accuracy, log-likelihood, calibration, Brier score and entropy of class probabilities.

    Args:
        num_classes: C.
        num_bins: bins of equal width of the confidence, the largest probability. A confidence on
            an edge belongs to the bin above, and 1 to the last bin.
    """

    def __init__(self, num_classes: int, num_bins: int = 15) -> None:
        if num_classes < 2 or num_bins < 1:
            raise ValueError(
                f"num_classes must be 2 or more and num_bins 1 or more, "
                f"got {num_classes} and {num_bins}"
            )
        self.num_classes = num_classes
        self.num_bins = num_bins
        self.sums = {
            # log-likelihood, the same clipped, Brier score, entropy
            "terms": torch.zeros(4, dtype=torch.float64),
            "bins": torch.zeros(num_bins, 3, dtype=torch.float64),  # confidence, correct, count
            "pairs": torch.zeros(num_classes, num_classes, dtype=torch.int64),  # true × predicted
        }

    def update(
        self,
        probabilities: Float[Tensor, "B C"],
        labels: Int64[Tensor, " B"],
        log_prob: Float[Tensor, " B"],
        log_prob_clipped: Float[Tensor, " B"],
        weights: Float[Tensor, " B"] | None = None,
    ) -> None:
        """Add a batch.

        Args:
            probabilities: predicted probability of each class.
            labels: true classes.
            log_prob: log predictive probability of the label.
            log_prob_clipped: the same, clipped as in the published metrics.
            weights: of the data points; None for 1.
        """
        C = self.num_classes
        if probabilities.shape[1] != C:
            raise ValueError(
                f"probabilities must have {C} columns, got {tuple(probabilities.shape)}"
            )
        check_labels(labels, C, len(probabilities))
        p = probabilities.double()
        confidence, predicted = p.max(1)
        brier = (p - torch.nn.functional.one_hot(labels, C)).square().sum(1)
        entropy = torch.special.entr(p).sum(1)
        terms = torch.stack([log_prob.double(), log_prob_clipped.double(), brier, entropy])
        inner = torch.arange(1, self.num_bins, dtype=p.dtype, device=p.device) / self.num_bins
        member = torch.nn.functional.one_hot(
            torch.bucketize(confidence, inner, right=True), self.num_bins
        )
        correct = (predicted == labels).double()
        seen = torch.stack([confidence, correct, torch.ones_like(correct)], dim=1)
        pairs = torch.bincount(labels * C + predicted, weights, minlength=C * C).view(C, C)
        if weights is not None:
            terms, seen = terms * weights, seen * weights[:, None]
        self.add(terms=terms.sum(1), bins=member.double().mT @ seen, pairs=pairs)

    def compute(self) -> dict[str, Tensor]:
        """The metrics by name.

        ``ece`` = Σ_bins |Σ confidence − Σ correct| / num; ``brier`` sums squared errors over the
        classes, so it lies in [0, 2]; ``entropy`` and the log-likelihoods are means, in nats.
        """
        num, bins = self.confusion.sum(), self.sums["bins"]
        log_likelihood, clipped, brier, entropy = self.sums["terms"] / num
        return {
            "accuracy": self.confusion.trace() / num.double(),
            "log_likelihood": log_likelihood,
            "log_likelihood_clipped": clipped,
            "ece": (bins[:, 0] - bins[:, 1]).abs().sum() / num,
            "brier": brier,
            "entropy": entropy,
            "num": num,
        }

    @property
    def confusion(self) -> Real[Tensor, "C C"]:
        """Counts (or sums of weights) of true class (row) × predicted class (column)."""
        return self.sums["pairs"]

    def reliability(
        self,
    ) -> tuple[Float64[Tensor, " bins"], Float64[Tensor, " bins"], Float64[Tensor, " bins"]]:
        """Mean confidence, accuracy and count of each bin; NaN where empty.

        ``plots.reliability_diagram(*metrics.reliability())`` shows them.
        """
        confidence, correct, count = self.sums["bins"].unbind(1)
        return confidence / count, correct / count, count


class TargetMetrics(Metrics):
    """Errors, log-likelihood and coverage of predicted means and variances.

    Args:
        deviations: of the T targets in training: the units of errors of several targets together.
    """

    def __init__(self, deviations: Sequence[float] = (1.0,)) -> None:
        self.deviations = torch.tensor(deviations, dtype=torch.float64)
        T = len(self.deviations)
        self.sums = {
            "terms": torch.zeros(3, T, dtype=torch.float64),  # squared, absolute error, covered
            "log_likelihood": torch.zeros((), dtype=torch.float64),
            "num": torch.zeros((), dtype=torch.int64),
        }

    def update(
        self,
        mean: Float[Tensor, "B T"],
        var: Float[Tensor, "B T"],
        y: Tensor,
        log_prob: Float[Tensor, " B"],
        weights: Float[Tensor, " B"] | None = None,
    ) -> None:
        """Add a batch: predictive mean and variance of the targets, and log p of each point."""
        w = torch.ones_like(log_prob, dtype=torch.float64) if weights is None else weights
        error = y.double() - mean.double()
        covered = error.abs() <= Z95 * var.double().sqrt()
        terms = torch.stack([error.square(), error.abs(), covered.double()]) * w[:, None]
        num = torch.tensor(len(y), device=y.device) if weights is None else w.sum()
        self.add(terms=terms.sum(1), log_likelihood=(w * log_prob.double()).sum(), num=num)

    def compute(self) -> dict[str, Tensor]:
        """The metrics by name.

        ``rmse`` and ``mae`` are in the units of the target. Several targets have one of each
        (``rmse_0``, …), and ``rmse_standardised`` and ``mae_standardised`` over all, each error
        divided by its target's deviation. ``log_likelihood`` is the mean over data of the sum over
        targets, in nats. ``coverage95``: share of targets within 1.96 predicted deviations of the
        predicted mean, 95 % if the predictions are Gaussian and right.
        """
        squared, absolute, covered = self.sums["terms"] / self.sums["num"]
        errors = {"rmse": squared.sqrt(), "mae": absolute}
        found: dict[str, Tensor] = {}
        for name, value in errors.items():
            if len(value) == 1:
                found[name] = value[0]
            else:
                found |= {f"{name}_{target}": one for target, one in enumerate(value)}
        if len(absolute) > 1:
            deviations = self.deviations.to(squared.device)
            found["rmse_standardised"] = (squared / deviations.square()).mean().sqrt()
            found["mae_standardised"] = (absolute / deviations).mean()
        log_likelihood = self.sums["log_likelihood"] / self.sums["num"]
        return found | {
            "log_likelihood": log_likelihood,
            "coverage95": covered.mean(),
            "num": self.sums["num"],
        }
