"""Real targets with Gaussian noise."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from gramian.gram.blocks import Marginals
from gramian.gram.random import normals
from gramian.nn.likelihoods.likelihood import sample
from gramian.nn.likelihoods.per_target import WithNoise, log_normal


class Gaussian(WithNoise):
    """p(y | f) = Π_c N(y_c; f_c, σ²_c), for targets y [B, C], σ² learned; all in closed form.

    Args (besides those of every likelihood):
        noise_var: start value of σ².
        shared_noise: learn one σ² for all targets.

    Example:
        >>> import torch
        >>> from gramian import Gaussian, Marginals
        >>> q = Marginals(mean=torch.tensor([[3.0]]), var=torch.tensor([[1.0]]))
        >>> found = Gaussian(1, noise_var=0.25).predict(q, noise=torch.zeros(1, 1, 1))
        >>> round(found["variance"].item(), 3)  # of f, and of the noise
        1.25
    """

    full_step = True

    def log_density(
        self, z: Float[Tensor, "B C"], f: Float[Tensor, "S B C"]
    ) -> Float[Tensor, "S B C"]:
        """Return log N(z; f, σ²)."""
        return log_normal(z, f, self.noise_var)

    def expected_log_prob(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> Float[Tensor, " B"]:
        """E_q[Σ_c log N(y_c; f_c, σ²_c)] = Σ_c log N(y_c; mean_c, σ²_c) − Σ_c var_c/(2σ²_c)."""
        if self.estimator == "monte_carlo":
            return super().expected_log_prob(q, y, noise)
        z = self.scaled(y, q.mean)
        expected = log_normal(z, q.mean, self.noise_var) - q.var / (2 * self.noise_var)
        return expected.sum(-1) - self.log_unit()

    def log_marginal(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> Float[Tensor, " B"]:
        """Σ_c log N(y_c; mean_c, var_c + σ²_c)."""
        mean, var = self.moments(q, noise)
        return log_normal(self.scaled(y, q.mean), mean, var).sum(-1) - self.log_unit()

    def derivatives(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
        """(z − mean)/σ² and 1/σ²."""
        precision = 1 / self.noise_var.to(q.mean.dtype)
        return precision * (self.scaled(y, q.mean) - q.mean), precision.expand_as(q.mean)

    def moments(
        self, q: Marginals, noise: Float[Tensor, "S #B C"]
    ) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
        """mean and var + σ²."""
        if self.estimator == "monte_carlo":
            unbiased = int(len(noise) > 1)  # one sample has no variance
            var, mean = torch.var_mean(sample(q, noise), dim=0, correction=unbiased)
            return mean, var + self.noise_var
        return q.mean, (q.var + self.noise_var).expand_as(q.mean)

    def draw(self, f: Float[Tensor, "S B C"], generator: torch.Generator) -> Float[Tensor, "S B C"]:
        """f + σ ε."""
        return f + self.noise_var.sqrt() * normals(f.shape, generator, f.dtype).to(f.device)
