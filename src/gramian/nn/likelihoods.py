"""Likelihoods: from marginals q(f) to an expectation for training and a prediction.

Monte-Carlo noise is an argument of shape [samples, B, C]. With [samples, 1, C] all data points
share it, and then a prediction does not depend on the place in the batch.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import Marginals
from gramian.nn.checks import check_features, check_labels

Estimator = Literal["exact", "monte_carlo"]


@runtime_checkable
class Likelihood(Protocol):
    """What a model needs of a likelihood. ``noise`` comes from ``draw_noise``."""

    num_samples: int

    def expected_log_prob(self, q: Marginals, y: Tensor, noise: Tensor) -> Float[Tensor, " B"]:
        """E_q[log p(y | f)] of each data point: the objective's first term."""
        ...

    def log_marginal(self, q: Marginals, y: Tensor, noise: Tensor) -> Float[Tensor, " B"]:
        """Return log E_q[p(y | f)] of each data point: the test log-likelihood."""
        ...


def draw_noise(
    num_samples: int,
    shape: tuple[int, int],
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "S B C"]:
    """Standard normals for ``shape`` = (B, C); B = 1 shares them over the batch."""
    size = (num_samples, *shape)
    return torch.randn(size, generator=generator, dtype=dtype, device=generator.device)


def sample(q: Marginals, noise: Float[Tensor, "S #B C"]) -> Float[Tensor, "S B C"]:
    """f = mean + noise · √var."""
    return q.mean + noise * q.var.sqrt()


class Categorical(nn.Module):
    """p(y | f) = softmax(f)_y.

    Args:
        num_classes: C.
        num_samples: Monte-Carlo samples, in training and in prediction.
        estimator: E[log softmax(f)_y] = mean_y − E[logsumexp f]. ``exact`` takes the first part
            exactly and samples only the second; ``monte_carlo`` samples both, as published.
    """

    def __init__(
        self, num_classes: int, num_samples: int = 1000, estimator: Estimator = "exact"
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.num_samples = num_samples
        self.estimator: Estimator = estimator

    def expected_log_prob(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> Float[Tensor, " B"]:
        """E_q[log softmax(f)_y]."""
        check_labels(y, self.num_classes, len(q.mean))
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

        ``clip``: keep the probability in [ε, 1 − ε] of its dtype, as the published figures do: in
        float32 no image then counts less than −15.94.
        """
        check_labels(y, self.num_classes, len(q.mean))
        if clip:
            eps = torch.finfo(q.mean.dtype).eps
            p = self.predict(q, noise).gather(1, y[:, None])[:, 0]
            return p.clamp(eps, 1 - eps).log()
        log_p = sample(q, noise).log_softmax(-1)[:, torch.arange(len(y)), y]
        return log_p.logsumexp(0) - math.log(len(log_p))

    def predict(self, q: Marginals, noise: Float[Tensor, "S #B C"]) -> Float[Tensor, "B C"]:
        """Class probabilities E_q[softmax(f)]."""
        return sample(q, noise).softmax(-1).mean(0)


class Gaussian(nn.Module):
    """p(y | f) = Π_c N(y_c; f_c, σ²), with σ² learned.

    Args:
        noise_var: start value of σ².
        num_samples: Monte-Carlo samples, if the estimator needs them.
        estimator: ``exact`` closed forms, or ``monte_carlo`` as published.
    """

    def __init__(
        self, noise_var: float = 1.0, num_samples: int = 1000, estimator: Estimator = "exact"
    ) -> None:
        super().__init__()
        if noise_var <= 0:
            raise ValueError(f"noise_var must be positive, got {noise_var}")
        self.log_noise_var = nn.Parameter(torch.tensor(math.log(noise_var)))
        self.num_samples = num_samples
        self.estimator: Estimator = estimator

    @property
    def noise_var(self) -> Float[Tensor, ""]:
        """σ²."""
        return self.log_noise_var.exp()

    def expected_log_prob(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> Float[Tensor, " B"]:
        """E_q[Σ_c log N(y_c; f_c, σ²)] = Σ_c log N(y_c; mean_c, σ²) − C·var/(2σ²)."""
        check_features(y, tuple(q.mean.shape), q.mean.dtype, "targets")
        if self.estimator == "monte_carlo":
            return _log_normal(y, sample(q, noise), self.noise_var).sum(-1).mean(0)
        spread = q.mean.shape[1] * q.var[:, 0] / (2 * self.noise_var)
        return _log_normal(y, q.mean, self.noise_var).sum(-1) - spread

    def log_marginal(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> Float[Tensor, " B"]:
        """Σ_c log N(y_c; mean_c, var + σ²)."""
        check_features(y, tuple(q.mean.shape), q.mean.dtype, "targets")
        mean, var = self.predict(q, noise)
        return _log_normal(y, mean, var).sum(-1)

    def predict(
        self, q: Marginals, noise: Float[Tensor, "S #B C"]
    ) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
        """Mean and variance of y."""
        if self.estimator == "monte_carlo":
            var, mean = torch.var_mean(sample(q, noise), dim=0)
            return mean, var + self.noise_var
        return q.mean, (q.var + self.noise_var).expand_as(q.mean)


def _log_normal(y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return -0.5 * ((y - mean).square() / var + var.log() + math.log(2 * math.pi))
