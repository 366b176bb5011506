"""Real targets with outliers."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from gramian.gram.blocks import Marginals
from gramian.gram.random import normals
from gramian.nn.likelihoods.likelihood import Estimator
from gramian.nn.likelihoods.per_target import WithNoise, log_normal
from gramian.nn.parameters import start_at


class StudentT(WithNoise):
    """p(y | f) = Π_c t_ν(y_c; f_c, σ), for y [B, C], with σ and ν of each target learned.

    σ is the scale. The degrees of freedom ν = 2 + exp(·) are above 2, so that there is a variance,
    σ² ν/(ν − 2).

    Args (besides those of every likelihood):
        noise_var: start value of σ².
        shared_noise: learn one σ and one ν for all targets.
        degrees: start value of ν.

    Example:
        >>> import torch
        >>> from gramian import Marginals, StudentT
        >>> q = Marginals(mean=torch.tensor([[3.0]]), var=torch.tensor([[1.0]]))
        >>> found = StudentT(1, noise_var=0.25, degrees=4.0).predict(q, torch.zeros(1, 1, 1))
        >>> round(found["variance"].item(), 3)  # of f, and 0.25 · 4/(4 − 2) of the noise
        1.5
    """

    def __init__(
        self,
        num_outputs: int,
        num_samples: int = 1000,
        estimator: Estimator = "exact",
        noise_var: float = 1.0,
        shared_noise: bool = False,
        degrees: float = 4.0,
    ) -> None:
        super().__init__(num_outputs, num_samples, estimator, noise_var, shared_noise)
        if not 2 < degrees < math.inf:
            raise ValueError(f"degrees must be above 2, got {degrees}")
        self.log_degrees = start_at(math.log(degrees - 2), *self.noise_shape)

    @property
    def degrees(self) -> Float[Tensor, "*C"]:
        """ν of each target, or of all."""
        return 2 + self.log_degrees.exp()

    def log_density(
        self, z: Float[Tensor, "B C"], f: Float[Tensor, "S B C"]
    ) -> Float[Tensor, "S B C"]:
        """lgamma((ν+1)/2) − lgamma(ν/2) − ½ log(π ν σ²) − (ν+1)/2 log(1 + (z − f)²/(ν σ²)).

        With h = ν/2 and Stirling's remainder r, the lgamma differ by
        ½ log h + h log(1 + 1/(2h)) − ½ + r(h + ½) − r(h), which large ν do not cancel.
        """
        nu, h = self.degrees, self.degrees / 2
        rest = h * (0.5 / h).log1p() - 0.5 + stirling_rest(h + 0.5) - stirling_rest(h)
        constant = rest - (2 * math.pi * self.noise_var).log() / 2
        return constant - (nu + 1) / 2 * ((z - f).square() / (nu * self.noise_var)).log1p()

    def log_marginal(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> Float[Tensor, " B"]:
        """Log ∫ N(z; mean, var + σ²/τ) Gamma(τ; ν/2, ν/2) dτ: the t density is this mixture.

        A trapezoidal sum over log τ, denser around 0: for any ratio of σ² and var, also in the
        tails.
        """
        if self.estimator == "monte_carlo":
            return super().log_marginal(q, y, noise)
        nu, half = self.degrees, self.degrees / 2
        unit = (2 / nu).sqrt()  # the deviation of log τ
        t = torch.linspace(-1, 1, 801, dtype=q.mean.dtype, device=q.mean.device)[:, None, None]
        t = t * (40 / unit).asinh()
        u = unit * t.sinh()
        log_gamma = (half / (2 * math.pi)).log() / 2 - stirling_rest(half) - half * (u.expm1() - u)
        log_step = (unit * t.cosh() * (t[1] - t[0])).log()
        var = q.var.clamp_min(0) + self.noise_var * (-u).exp()
        log_p = log_normal(self.scaled(y, q.mean), q.mean, var)
        return (log_p + log_gamma + log_step).logsumexp(0).sum(-1) - self.log_unit()

    def moments(
        self, q: Marginals, noise: Float[Tensor, "S #B C"]
    ) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
        """mean and var + σ² ν/(ν − 2)."""
        noise_var = self.noise_var * self.degrees / (self.degrees - 2)
        return q.mean, (q.var + noise_var).expand_as(q.mean)

    def draw(self, f: Float[Tensor, "S B C"], generator: torch.Generator) -> Float[Tensor, "S B C"]:
        """f + σ ε/√τ."""
        half = (self.degrees / 2).to(f).expand(f.shape).to(generator.device)
        tau = torch._standard_gamma(half, generator=generator) / half
        noise = normals(f.shape, generator, f.dtype) / tau.sqrt()
        return f + self.noise_var.sqrt() * noise.to(f.device)


def stirling_rest(x: Tensor) -> Tensor:
    """r in lgamma x = x log x − x + ½ log(2π/x) + r, for x ≥ 1."""
    series = 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5)
    direct = x.lgamma() - (x * x.log() - x + (2 * math.pi / x).log() / 2)
    return torch.where(x > 8, series, direct)
