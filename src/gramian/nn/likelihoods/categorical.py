"""Classes."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gramian.gram.blocks import Marginals
from gramian.nn.checks import check_labels
from gramian.nn.likelihoods.likelihood import Likelihood, Named, sample
from gramian.nn.likelihoods.metric_sums import ClassificationMetrics, Metrics


class Categorical(Likelihood):
    """p(y | f) = softmax(f)_y, for class numbers y [B].

    ``estimator``: E[log softmax(f)_y] = mean_y − E[logsumexp f]. ``exact`` takes the first part
    exactly and samples only the second; ``monte_carlo`` samples both, as published.

    Example:
        >>> import torch
        >>> from gramian import Categorical, Marginals
        >>> likelihood, noise = Categorical(2), torch.tensor([[[-1.0, 0.0]], [[1.0, 0.0]]])
        >>> for var in (0.0, 9.0):  # the less is known of f, the nearer to ½
        ...     q = Marginals(torch.tensor([[2.0, 0.0]]), torch.tensor([[var]]))
        ...     print(likelihood.predict(q, noise)["probabilities"])
        tensor([[0.8808, 0.1192]])
        tensor([[0.6311, 0.3689]])
    """

    targets = "classes"
    fewest_outputs = 2

    def check(self, y: Tensor, batch: int) -> None:
        """Raise unless ``y`` are class numbers."""
        check_labels(y, self.num_outputs, batch)

    def expected_log_prob(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> Float[Tensor, " B"]:
        """E_q[log softmax(f)_y]."""
        self.check(y, len(q.mean))
        f = sample(q, noise)
        linear = q.mean if self.estimator == "exact" else f.mean(0)
        return linear.gather(1, y[:, None])[:, 0] - f.logsumexp(-1).mean(0)

    def log_marginal(
        self,
        q: Marginals,
        y: Tensor,
        noise: Float[Tensor, "S #B C"],
        clip: bool = False,
    ) -> Float[Tensor, " B"]:
        """Return log E_q[softmax(f)_y].

        ``clip``: keep the probability in [ε, 1 − ε] of its dtype, as the published metrics do: in
        float32 no image then counts less than −15.94.
        """
        self.check(y, len(q.mean))
        if clip:
            eps = torch.finfo(q.mean.dtype).eps
            p = self.predict(q, noise)["probabilities"].gather(1, y[:, None])[:, 0]
            return p.clamp(eps, 1 - eps).log()
        log_p = sample(q, noise).log_softmax(-1)[:, torch.arange(len(y)), y]
        return log_p.logsumexp(0) - math.log(len(log_p))

    def predict(self, q: Marginals, noise: Float[Tensor, "S #B C"]) -> Named:
        """``probabilities`` E_q[softmax(f)] of the classes."""
        return {"probabilities": sample(q, noise).softmax(-1).mean(0)}

    def derivatives(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B 1"]]:
        """E_q[onehot(y) − p] and E_q[mean_c p_c (1 − p_c)], with noise of both signs."""
        p = sample(q, torch.cat([noise, -noise])).softmax(-1)
        target = torch.nn.functional.one_hot(y, self.num_outputs)
        return target - p.mean(0), (p * (1 - p)).mean((0, 2))[:, None]

    def hits(self, q: Marginals, y: Tensor) -> Bool[Tensor, " B"]:
        """Whether the class of the largest mean is the right one."""
        return q.mean.argmax(1) == y

    def mutual_information(
        self, q: Marginals, noise: Float[Tensor, "S #B C"]
    ) -> Float[Tensor, " B"]:
        """H[E_q p] − E_q H[p] with p = softmax(f), over the samples."""
        p = sample(q, noise).softmax(-1)
        return torch.special.entr(p.mean(0)).sum(-1) - torch.special.entr(p).sum(-1).mean(0)

    def metrics(self) -> ClassificationMetrics:
        """Accuracy, log-likelihood, calibration, Brier score and entropy."""
        return ClassificationMetrics(self.num_outputs)

    def add_to_(
        self,
        metrics: Metrics,
        q: Marginals,
        y: Tensor,
        noise: Float[Tensor, "S #B C"],
        weights: Float[Tensor, " B"] | None = None,
    ) -> None:
        """Add a batch."""
        assert isinstance(metrics, ClassificationMetrics)
        metrics.update(
            self.predict(q, noise)["probabilities"],
            y,
            self.log_marginal(q, y, noise),
            self.log_marginal(q, y, noise, clip=True),
            weights,
        )
