"""A custom kernel: one file outside the package, one method to write.

    gramian train --model.kernel custom_kernel.RationalQuadratic        (in this folder)
    gramian predict RUN image.png --import custom_kernel

In Python: import this module, then ``ConvDKMConfig(kernel="custom_kernel.RationalQuadratic")``, or
``DKMClassifier(kernel=…)``. A saved model names the module that it needs.

    python examples/custom_kernel.py        # a classifier of irises with this kernel
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gramian import Jitter, Kernel


class RationalQuadratic(Kernel):
    """k = (1 + d²/2α)^(−α), d² = x + y − 2c: a mixture of squared exponentials, α learned."""

    def __init__(
        self,
        weight_var: float | None = 1.0,
        bias_var: float | None = 0.1,
        jitter: Jitter = Jitter(),
    ) -> None:
        super().__init__(weight_var, bias_var, jitter)
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def pairs(self, c: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The kernel of two points with G_ab = c, G_aa = x and G_bb = y."""
        alpha = self.log_alpha.exp()
        squared = (x + y - 2 * c).clamp_min(0.0)
        return (1 + squared / (2 * alpha)) ** -alpha


def main() -> None:
    """Train with this kernel, and say how well it does."""
    from sklearn.datasets import load_iris
    from sklearn.model_selection import cross_val_score

    from gramian import DKMClassifier

    X, y = load_iris(return_X_y=True)
    kernel = f"{RationalQuadratic.__module__}.{RationalQuadratic.__name__}"
    scores = cross_val_score(DKMClassifier(kernel=kernel, random_state=0), X, y, cv=3)
    print(f"iris, 3 folds: {scores.mean():.1%} correct")


if __name__ == "__main__":
    main()
