"""Counts."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from gramian.gram.blocks import Marginals
from gramian.gram.errors import checks_are_deferred
from gramian.nn.likelihoods.per_target import NODES, PerTarget, log_weights


class Poisson(PerTarget):
    """p(y | f) = Π_c Poisson(y_c; exp(f_c + shift_c)), for counts y [B, C].

    ``shift`` is the logarithm of the mean count. ``scale``, the deviation of the counts, is for
    metrics only: the counts are not scaled.

    Example:
        >>> import torch
        >>> from gramian import Marginals, Poisson
        >>> q = Marginals(mean=torch.tensor([[0.0]]), var=torch.tensor([[2.0]]))
        >>> found = Poisson(1).predict(q, noise=torch.zeros(1, 1, 1))
        >>> round(found["mean"].item(), 3)  # exp(mean + var/2)
        2.718
    """

    targets = "counts"

    def check(self, y: Tensor, batch: int) -> None:
        """Raise unless ``y`` are whole numbers, 0 or more."""
        super().check(y, batch)
        if not checks_are_deferred() and ((y < 0) | (y != y.round())).any():
            raise ValueError(
                "counts must be whole numbers, 0 or more, got values such as "
                f"{y[(y < 0) | (y != y.round())][0].item():g}"
            )

    @torch.no_grad()
    def fit_targets_(self, y: Tensor, weights: Float[Tensor, " N"] | None = None) -> None:
        """Set ``shift`` to the logarithm of the mean count; for no count at all, of 1/(2N)."""
        super().fit_targets_(y, weights)
        self.shift.copy_(
            self.shift.clamp_min(0.5 / (len(y) if weights is None else weights.sum())).log()
        )

    @property
    def units(self) -> tuple[Float[Tensor, " C"], Float[Tensor, " C"]]:
        """Those of the counts themselves: y = z."""
        return torch.zeros_like(self.shift), torch.ones_like(self.scale)

    def latent(self, q: Marginals) -> Marginals:
        """q of the logarithm of the rate."""
        return Marginals(q.mean + self.shift.to(q.mean), q.var)

    def log_density(
        self, z: Float[Tensor, "B C"], f: Float[Tensor, "S B C"]
    ) -> Float[Tensor, "S B C"]:
        """z·(f + shift) − exp(f + shift) − log z!."""
        f = f + self.shift.to(f)
        return z * f - f.exp() - (z + 1).lgamma()

    def expected_log_prob(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> Float[Tensor, " B"]:
        """Σ_c y_c m_c − exp(m_c + var_c/2) − log y_c!, with m = mean + shift."""
        z = self.scaled(y, q.mean)
        if self.estimator == "monte_carlo":
            return super().expected_log_prob(q, y, noise)
        return (z * (q.mean + self.shift.to(z)) - self._rate(q) - (z + 1).lgamma()).sum(-1)

    def log_marginal(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> Float[Tensor, " B"]:
        """Σ_c log E_q[p(y_c | f_c)], by Gauss-Hermite sums around the mode of p(y | f) q(f).

        With g = f + shift at the mode, rate e^g and a = y − e^g, the mode is at g = m + var·a, the
        deviation there is s = √(var/(1 + var e^g)), and q(f) at g + s x is in closed form.
        """
        if self.estimator == "monte_carlo":
            return super().log_marginal(q, y, noise)
        z, m, x = self.scaled(y, q.mean), q.mean + self.shift.to(q.mean), NODES.to(q.mean)
        v = q.var.clamp_min(torch.finfo(q.var.dtype).tiny).expand_as(m)
        w = _omega(v.log() + m + v * z)  # w = var·e^g, and w + log w = log var + m + var·y
        g, s = m + v * z - w, (v / (1 + w)).sqrt()
        a = z - w / v
        f = g + s * x
        log_p = z * f - f.exp() - (z + 1).lgamma()
        log_q = -(v * a.square() / 2 + a * s * x + x.square() / (2 * (1 + w)))
        terms = log_weights(log_p) + log_p + log_q + x.square() / 2 - w.log1p() / 2
        return terms.logsumexp(0).sum(-1)

    def derivatives(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
        """y − exp(m + var/2) and exp(m + var/2)."""
        rate = self._rate(q)
        return self.scaled(y, q.mean) - rate, rate

    def moments(
        self, q: Marginals, noise: Float[Tensor, "S #B C"]
    ) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
        """r = exp(m + var/2) and r + (exp(var) − 1) r²."""
        rate = self._rate(q)
        return rate, rate + q.var.expm1() * rate.square()

    def draw(self, f: Float[Tensor, "S B C"], generator: torch.Generator) -> Float[Tensor, "S B C"]:
        """Counts of rate exp(f + shift)."""
        rate = (f + self.shift.to(f)).exp().to(generator.device)
        return torch.poisson(rate, generator=generator).to(f.device)

    def _rate(self, q: Marginals) -> Float[Tensor, "B C"]:
        """E_q[exp(f + shift)] = exp(mean + shift + var/2)."""
        return (q.mean + self.shift.to(q.mean) + q.var / 2).exp()


def _omega(c: Tensor) -> Tensor:
    """The solution of w + log w = c, by Newton's method; the smallest number if it is smaller."""
    least = torch.finfo(c.dtype).tiny
    w = torch.where(c > 1, c, c.clamp_max(1).exp()).clamp_min(least)
    for _ in range(12):
        w = (w * (1 + c - w.log()) / (1 + w)).clamp_min(least)
    return w
