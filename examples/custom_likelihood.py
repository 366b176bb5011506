"""A custom likelihood: one file outside the package, three methods to write.

    gramian train --data table.npz --model.likelihood custom_likelihood.Laplace    (in this folder)
    gramian predict RUN table.npz --import custom_likelihood

In Python: import this module, then ``DenseDKMConfig(likelihood="custom_likelihood.Laplace")``, or
``DKMRegressor(likelihood=…)``. Training, natural gradients, metrics, export and the scaling of the
targets follow from these methods. A saved model names the module that it needs.

    python examples/custom_likelihood.py        # a regression whose targets have outliers
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gramian import Marginals, PerTarget


class Laplace(PerTarget):
    """p(z | f) = exp(−|z − f|/b) / 2b, with b = ½ in units of the targets' deviation."""

    width = 0.5

    def log_density(self, z: Tensor, f: Tensor) -> Tensor:
        """Return log p(z | f) of each target."""
        return -(z - f).abs() / self.width - math.log(2 * self.width)

    def moments(self, q: Marginals, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of z."""
        return q.mean, (q.var + 2 * self.width**2).expand_as(q.mean)

    def draw(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draws of z, given f."""
        uniform = torch.rand(f.shape, generator=generator, dtype=f.dtype) - 0.5
        return f - self.width * uniform.sign() * (1 - 2 * uniform.abs()).log().to(f.device)


def main() -> None:
    """Compare it with Gaussian noise on targets of which a tenth are wrong."""
    import numpy as np

    from gramian import DKMRegressor

    draw = np.random.default_rng(0)
    x = draw.uniform(-3, 3, (200, 1))
    truth = np.sin(2 * x[:, 0])
    y = truth + 0.1 * draw.standard_normal(200)
    y[::10] += 20
    for name in ("gaussian", f"{Laplace.__module__}.{Laplace.__name__}"):
        model = DKMRegressor(likelihood=name, random_state=0).fit(x, y)
        print(f"{name}: mean error {np.abs(model.predict(x) - truth).mean():.3f}")


if __name__ == "__main__":
    main()
