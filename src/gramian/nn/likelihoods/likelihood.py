"""What everything else asks of a likelihood p(y | f), and nobody needs to know which one it is.

Targets come in and predictions go out in their own units. Monte-Carlo noise is an argument of shape
[samples, B, C]. With [samples, 1, C] all data points share it, and then a prediction does not
depend on the place in the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gramian.gram.blocks import Marginals
from gramian.gram.random import normals, permutation
from gramian.nn.likelihoods.metric_sums import Metrics

Targets = Literal["classes", "real", "counts"]
Estimator = Literal["exact", "monte_carlo"]
Named = dict[str, Tensor]

MOST_NOISE = 2**26
"""Numbers of Monte-Carlo noise that a batch draws at most: 268 MB in float32."""


@dataclass(frozen=True, kw_only=True)
class LikelihoodConfig:
    """The likelihood of a model.

    Args:
        likelihood: categorical, gaussian, student_t, poisson, or a custom ``Likelihood`` as
            "module.Class"; auto for what suits the data (categorical before there are any).
        num_outputs: C: classes, or targets of a regression.
        num_samples: Monte-Carlo samples, if the estimator needs them.
        estimator: of the expected log-likelihood: exact as far as possible, or monte_carlo.
        noise_var: start value of the variance of a noise, in units of the targets' variance.
        shared_noise: learn one noise for all targets, in those units; otherwise one for each.
    """

    likelihood: str = "auto"
    num_outputs: int = 10
    num_samples: int = 1000
    estimator: Estimator = "exact"
    noise_var: float = 0.1
    shared_noise: bool = False


class Likelihood(nn.Module, ABC):
    """p(y | f) of each data point, given its C functions f.

        training: E_q[log p(y | f)],  prediction: log E_q[p(y | f)],  with q(f) = N(mean, var)

    Targets y are [B] for classes and [B, C] for numbers; every expectation is [B].

    Args:
        num_outputs: C.
        num_samples: Monte-Carlo samples, in training and in prediction.
        estimator: ``exact`` as far as possible, or ``monte_carlo``, as published.

    Example:
        >>> from gramian import Likelihood
        >>> print(*sorted(Likelihood.__abstractmethods__))  # what a custom one has to write
        add_to_ check derivatives expected_log_prob log_marginal metrics predict
    """

    targets: ClassVar[Targets]
    """What data it is for."""
    full_step: ClassVar[bool] = False
    """Whether a full natural-gradient step is exact; half of one is taken where it is not."""
    fewest_outputs: ClassVar[int] = 1

    def __init__(
        self, num_outputs: int, num_samples: int = 1000, estimator: Estimator = "exact"
    ) -> None:
        super().__init__()
        if num_outputs < self.fewest_outputs or num_samples < 1:
            raise ValueError(
                f"{type(self).__name__}: num_outputs must be {self.fewest_outputs} or more and "
                f"num_samples 1 or more, got {num_outputs} and {num_samples}"
            )
        self.num_outputs = num_outputs
        self.num_samples = num_samples
        self.estimator: Estimator = estimator

    @classmethod
    def from_config(cls, config: LikelihoodConfig) -> Likelihood:
        """The likelihood that a model's configuration asks for."""
        return cls(config.num_outputs, config.num_samples, config.estimator)

    @abstractmethod
    def check(self, y: Tensor, batch: int) -> None:
        """Raise TypeError or ValueError unless ``y`` are targets of ``batch`` data points."""

    @abstractmethod
    def expected_log_prob(self, q: Marginals, y: Tensor, noise: Tensor) -> Float[Tensor, " B"]:
        """E_q[log p(y | f)] of each data point: the objective's first term."""

    @abstractmethod
    def log_marginal(self, q: Marginals, y: Tensor, noise: Tensor) -> Float[Tensor, " B"]:
        """Return log E_q[p(y | f)] of each data point: the test log-likelihood."""

    @abstractmethod
    def predict(self, q: Marginals, noise: Tensor) -> Named:
        """The prediction for y: ``probabilities`` [B, C], or ``mean`` and ``variance`` [B, C]."""

    @abstractmethod
    def derivatives(
        self, q: Marginals, y: Tensor, noise: Tensor
    ) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B #C"]]:
        """g = ∂/∂mean of E_q[log p(y|f)], and w = −∂²/∂mean²; [B, 1] is its mean over outputs."""

    @abstractmethod
    def metrics(self) -> Metrics:
        """An empty accumulator of metrics, for ``add_to_``."""

    @abstractmethod
    def add_to_(
        self,
        metrics: Metrics,
        q: Marginals,
        y: Tensor,
        noise: Tensor,
        weights: Float[Tensor, " B"] | None = None,
    ) -> None:
        """Add a batch to what ``metrics`` returned; a data point of weight 2 counts as two."""

    def fit_targets_(self, y: Tensor, weights: Float[Tensor, " N"] | None = None) -> None:
        """Take the scale of the targets from a training set; classes have none."""

    def latent(self, q: Marginals) -> Marginals:
        """q(f) in the units in which f is read."""
        return q

    def hits(self, q: Marginals, y: Tensor) -> Bool[Tensor, " B"] | None:
        """Whether the most probable class is the right one; None if there are no classes."""
        return None

    def mutual_information(self, q: Marginals, noise: Tensor) -> Float[Tensor, " B"] | None:
        """I(y; f) in nats: what is uncertain about a class because f is; None without classes."""
        return None

    def extra_repr(self) -> str:
        """For ``repr``."""
        return f"{self.num_outputs}, num_samples={self.num_samples}, estimator={self.estimator!r}"


def draw_noise(
    num_samples: int,
    shape: tuple[int, int],
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "S #B C"]:
    """Standard normals for ``shape`` = (B, C); B = 1 shares them over the batch.

    A batch that would take more than ``MOST_NOISE`` of them shares them, too.
    """
    B, C = shape
    rows = B if num_samples * B * C <= MOST_NOISE else 1
    return normals((num_samples, rows, C), generator, dtype)


def even_points(
    num_samples: int,
    num_outputs: int,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "S 1 C"]:
    """Standard normals that lie evenly, for a prediction whose samples all data share.

    Independent ones favour a class, and the same class for all data. These come in both signs: each
    output takes the quantiles (k + ½)/S in an order and with signs of its own. Their second moments
    are those of independent normals, if there are eight samples or more for each output.
    """
    half = num_samples // 2
    orders = torch.stack([permutation(half, generator) for _ in range(num_outputs)], dim=1)
    signs = normals(orders.shape, generator, torch.float64).sign()
    z = signs * torch.special.ndtri((orders + 0.5).double() / num_samples)
    if num_samples >= 8 * num_outputs:
        values, vectors = torch.linalg.eigh(2 * z.mT @ z / num_samples)
        z = z @ (vectors / values.sqrt()) @ vectors.mT
    else:
        z = z * (num_samples / (2 * z.square().sum(0))).sqrt()
    zero = z.new_zeros(num_samples % 2, num_outputs)
    return torch.cat([z, -z, zero]).to(dtype)[:, None]


def sample(q: Marginals, noise: Float[Tensor, "S #B #C"]) -> Float[Tensor, "S B C"]:
    """f = mean + noise · √var.

    A variance check lets values just below 0 pass (``VarianceCheck.threshold``): they count as 0.
    """
    return q.mean + noise * q.var.clamp_min(0).sqrt()


def received(y: Tensor, device: torch.device) -> Tensor:
    """Targets on a device, in float64 if that is what they are and the device has it."""
    narrow = device.type == "mps" and y.dtype == torch.float64
    return y.to(device, torch.float32 if narrow else y.dtype)
