"""A custom likelihood: Laplace noise, in one file outside the package.

    gramian train --data table.npz --model.likelihood custom_likelihood.Laplace    (in this folder)
    gramian predict RUN new.npz --import custom_likelihood

In Python: import this module, then ``DKMRegressor(likelihood="custom_likelihood.Laplace")``.

    python examples/custom_likelihood.py    # a regression with outliers, beside Gaussian noise
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gramian import Marginals, PerTarget
from gramian.nn.likelihoods import Estimator


class Laplace(PerTarget):
    """p(y | f) = exp(−|y − f| / b) / 2b for each target, b learned: far from most outliers.

    Everything is in units where each target has mean 0 and deviation 1; the base class sees to the
    units, and takes expectations of the density over q(f).
    """

    def __init__(
        self, num_outputs: int, num_samples: int = 1000, estimator: Estimator = "exact"
    ) -> None:
        super().__init__(num_outputs, num_samples, estimator)
        self.log_width = nn.Parameter(torch.tensor(math.log(0.3)))

    def log_density(self, z: Tensor, f: Tensor) -> Tensor:
        """Return log p(z | f) of each target."""
        return -(z - f).abs() / self.log_width.exp() - self.log_width - math.log(2)

    def moments(self, q: Marginals, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of z: the noise has variance 2 b²."""
        return q.mean, (q.var + 2 * (2 * self.log_width).exp()).expand_as(q.mean)

    def draw(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draws of z, given f: a difference of two exponentials."""
        u = torch.rand(2, *f.shape, generator=generator, dtype=f.dtype, device=generator.device)
        difference = (-u.log()).diff(dim=0)[0].to(f.device)
        return f + self.log_width.exp() * difference


def main() -> None:
    """A sine with outliers: mean absolute error of both likelihoods."""
    import numpy as np

    from gramian import DKMRegressor

    random = np.random.default_rng(0)
    x = random.uniform(-3, 3, (300, 1))
    clean = np.sin(2 * x[:, 0])
    y = clean + 0.1 * random.standard_normal(300)
    y[::10] += 5 * random.standard_normal(30)
    for likelihood in ("gaussian", f"{Laplace.__module__}.Laplace"):
        model = DKMRegressor(likelihood=likelihood, random_state=0).fit(x, y)
        error = np.abs(model.predict(x) - clean).mean()
        print(f"{likelihood:<28} mean absolute error {error:.3f}")


if __name__ == "__main__":
    main()
