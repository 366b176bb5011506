"""Metrics of predictions, as float64 sums: exact over batches, and added up over processes."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torchmetrics import Metric

from gramian.nn.checks import check_labels

Z95 = 1.959963984540054  # the standard normal lies within ±Z95 with probability 0.95


class _Sums(Metric):
    """A metric whose state is sums, in float64 unless they count."""

    full_state_update = False

    def add_sum(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Start a sum at zero; processes add theirs up."""
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")


class ClassificationMetrics(_Sums):
    """Accuracy, log-likelihood, calibration, Brier score and entropy of class probabilities.

    Args:
        num_classes: C.
        num_bins: bins of equal width of the confidence, the largest probability. A confidence on
            an edge belongs to the bin above, and 1 to the last bin.
        kwargs: of ``torchmetrics.Metric``. With ``sync_on_compute=False`` all answers are this
            process's own; otherwise every process must ask, or the others wait for ever.
    """

    sums: Float64[Tensor, "4"]  # log-likelihood, the same clipped, Brier score, entropy
    bins: Float64[Tensor, "bins 3"]  # confidence, correctness, count
    pairs: Int64[Tensor, "C C"]  # true class × predicted class

    def __init__(self, num_classes: int, num_bins: int = 15, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if num_classes < 2 or num_bins < 1:
            raise ValueError(
                f"num_classes must be 2 or more and num_bins 1 or more, "
                f"got {num_classes} and {num_bins}"
            )
        self.num_classes = num_classes
        self.num_bins = num_bins
        self.add_sum("sums", (4,), torch.float64)
        self.add_sum("bins", (num_bins, 3), torch.float64)
        self.add_sum("pairs", (num_classes, num_classes), torch.int64)

    def update(
        self,
        probabilities: Float[Tensor, "B C"],
        labels: Int64[Tensor, " B"],
        log_prob: Float[Tensor, " B"],
        log_prob_clipped: Float[Tensor, " B"],
    ) -> None:
        """Add a batch.

        Args:
            probabilities: predicted probability of each class.
            labels: true classes.
            log_prob: log predictive probability of the label.
            log_prob_clipped: the same, clipped as in the published figures.
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
        terms = [log_prob.double(), log_prob_clipped.double(), brier, entropy]
        self.sums += torch.stack(terms).sum(1)

        inner = torch.arange(1, self.num_bins, dtype=p.dtype, device=p.device) / self.num_bins
        member = torch.nn.functional.one_hot(
            torch.bucketize(confidence, inner, right=True), self.num_bins
        )
        correct = (predicted == labels).double()
        seen = torch.stack([confidence, correct, torch.ones_like(correct)], dim=1)
        self.bins += member.double().mT @ seen
        self.pairs += torch.bincount(labels * C + predicted, minlength=C * C).view(C, C)

    def compute(self) -> dict[str, Tensor]:
        """The metrics by name, as float64 scalars, except the count ``num``.

        ``ece`` = Σ_bins |Σ confidence − Σ correct| / num; ``brier`` sums squared errors over the
        classes, so it lies in [0, 2]; ``entropy`` and the log-likelihoods are means, in nats.
        """
        num = self.pairs.sum()
        log_likelihood, clipped, brier, entropy = self.sums / num
        return {
            "accuracy": self.pairs.trace() / num.double(),
            "log_likelihood": log_likelihood,
            "log_likelihood_clipped": clipped,
            "ece": (self.bins[:, 0] - self.bins[:, 1]).abs().sum() / num,
            "brier": brier,
            "entropy": entropy,
            "num": num,
        }

    @property
    def confusion(self) -> Int64[Tensor, "C C"]:
        """Counts of true class (row) × predicted class (column)."""
        with self.sync_context(should_sync=self.sync_on_compute):
            return self.pairs.clone()

    def reliability(
        self,
    ) -> tuple[Float64[Tensor, " bins"], Float64[Tensor, " bins"], Float64[Tensor, " bins"]]:
        """Mean confidence, accuracy and count of each bin; NaN where empty.

        ``plots.reliability_diagram(*metrics.reliability())`` shows them.
        """
        with self.sync_context(should_sync=self.sync_on_compute):
            confidence, correct, count = self.bins.clone().unbind(1)
        return confidence / count, correct / count, count


class RegressionMetrics(_Sums):
    """Errors, Gaussian log-likelihood and coverage of predicted means and variances."""

    sums: Float64[Tensor, "4"]  # squared error, absolute error, log-likelihood, covered
    num: Int64[Tensor, ""]  # data points
    entries: Int64[Tensor, ""]  # data points × targets

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_sum("sums", (4,), torch.float64)
        self.add_sum("num", (), torch.int64)
        self.add_sum("entries", (), torch.int64)

    def update(
        self, mean: Float[Tensor, "B T"], var: Float[Tensor, "B T"], y: Float[Tensor, "B T"]
    ) -> None:
        """Add a batch: predictive mean and variance of the targets ``y``, all in target units."""
        error, v = y.double() - mean.double(), var.double()
        log_normal = -0.5 * (error.square() / v + v.log() + math.log(2 * math.pi))
        covered = (error.abs() <= Z95 * v.sqrt()).double()
        self.sums += torch.stack([error.square(), error.abs(), log_normal, covered]).sum((1, 2))
        self.num += len(y)
        self.entries += y.numel()

    def compute(self) -> dict[str, Tensor]:
        """The metrics by name, as float64 scalars, except the count ``num`` of data points.

        ``log_likelihood`` is the mean over data of the sum over targets, in nats; the others are
        means over both. ``coverage95``: share of targets within their central 95 % interval.
        """
        squared, absolute, log_likelihood, covered = self.sums
        return {
            "rmse": (squared / self.entries).sqrt(),
            "mae": absolute / self.entries,
            "log_likelihood": log_likelihood / self.num,
            "coverage95": covered / self.entries,
            "num": self.num.clone(),
        }
