"""The objective of a deep kernel machine. The sign turns here, and only here."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from gramian.nn.contract import DKMResult
from gramian.nn.likelihoods import Likelihood


@dataclass(frozen=True, slots=True)
class Terms:
    """(1/N) of Eq. cdkm_inducing_ob, estimated on a batch: what is maximised, and its parts."""

    expected_log_lik: Float[Tensor, ""]  # mean over the batch
    kl: Float[Tensor, ""]  # sum over the layers, not yet divided by N
    total: Float[Tensor, ""]

    @property
    def loss(self) -> Float[Tensor, ""]:
        """What an optimiser minimises."""
        return -self.total


def objective(
    result: DKMResult,
    likelihood: Likelihood,
    y: Tensor,
    noise: Tensor,
    num_data: int | float,
    weights: Float[Tensor, " B"] | None = None,
) -> Terms:
    """total = mean over the batch of w E_q[log p(y | f)] − (1/N) Σ KL.

    Args:
        result: what the model says about the batch.
        likelihood: of the targets.
        y: the batch's targets, in their own units.
        noise: Monte-Carlo noise of the likelihood.
        num_data: N, the size of the whole training set; with weights, their sum before they
            were divided by their mean.
        weights: w of the data points, 1 on average over the training set; None for 1.
    """
    log_prob = likelihood.expected_log_prob(result.marginals, y, noise)
    expected = (log_prob if weights is None else weights * log_prob).mean()
    kl = result.total_kl
    return Terms(expected, kl, expected - kl / num_data)
