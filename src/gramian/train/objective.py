"""The objective of a deep kernel machine. The sign turns here, and only here."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from gramian.nn.contract import DKMResult
from gramian.nn.likelihoods import Likelihood


@dataclass(frozen=True, slots=True)
class Terms:
    """(1/N) of Eq. cdkm_inducing_ob, estimated on a batch: what is maximised, and its parts.

        total = expected_log_lik − kl/N

    Attributes:
        expected_log_lik: E_q[log p(y | f)], the mean over the batch.
        kl: sum over the layers, not yet divided by N.
        total: the objective.

    Example:
        >>> import torch
        >>> from gramian import Terms
        >>> terms = Terms(torch.tensor(-0.5), kl=torch.tensor(20.0), total=torch.tensor(-0.7))
        >>> terms.loss  # for an optimiser, which minimises
        tensor(0.7000)
    """

    expected_log_lik: Float[Tensor, ""]
    kl: Float[Tensor, ""]
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

    Example:
        >>> import torch
        >>> from gramian import Categorical, DKMResult, Marginals, objective
        >>> q = Marginals(torch.zeros(4, 2), torch.zeros(4, 1))  # ½ for either class
        >>> result = DKMResult(q, kl={"output": torch.tensor(20.0)}, seen={})
        >>> y, noise = torch.tensor([0, 1, 1, 0]), torch.zeros(1, 4, 2)
        >>> objective(result, Categorical(2), y, noise, num_data=100).total  # log ½ − 20/100
        tensor(-0.8931)
    """
    log_prob = likelihood.expected_log_prob(result.marginals, y, noise)
    expected = (log_prob if weights is None else weights * log_prob).mean()
    kl = result.total_kl
    return Terms(expected, kl, expected - kl / num_data)
