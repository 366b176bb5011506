"""Kernels for prediction only: what depends on the inducing points alone is computed once."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.fast.passes import gaussian_rows, roots, split_decay
from gramian.nn.steps.kernels import Kernel, NormalizedGaussian

Data = tuple[Tensor, Tensor]
"""G_ti [B, *space, P] and g_tt [B, *space]: the inducing blocks have been used up."""

M = TypeVar("M", bound=nn.Module)


class FrozenKernel(nn.Module):
    """K_ti and k_tt of a kernel, for inducing points with the diagonal g_ii."""

    g_ii: Tensor

    def __init__(self, kernel: Kernel, g_ii: Float[Tensor, " P"]) -> None:
        super().__init__()
        self.kernel = copied(kernel)
        self.register_buffer("g_ii", g_ii.clone())

    def forward(self, ti: Float[Tensor, "B *space P"], tt: Float[Tensor, "B *space"]) -> Data:
        """The kernel."""
        K_ti = self.kernel.rows(ti.flatten(0, -2), tt.flatten(), self.g_ii).view_as(ti)
        return K_ti, self.kernel.jitter(self.kernel.data_diagonal(tt))


class FrozenGaussian(nn.Module):
    """The normalised Gaussian kernel with √g_ii, w, b, β and the jitter worked out."""

    q: Tensor
    column: Tensor
    b: Tensor
    less: Tensor
    slope: Tensor
    offset: Tensor

    def __init__(self, kernel: NormalizedGaussian, g_ii: Float[Tensor, " P"]) -> None:
        super().__init__()
        w, b = kernel.variances(g_ii)
        root, q = roots(g_ii)
        jitter, beta = kernel.jitter, kernel.beta(g_ii)
        self.register_buffer("q", beta * q)
        decay, less = split_decay(beta)
        self.register_buffer("column", w * root * decay)
        self.register_buffer("b", b)
        self.register_buffer("less", less)
        self.register_buffer("slope", (1 + jitter.relative) * w)
        self.register_buffer("offset", jitter(b))

    def forward(self, ti: Float[Tensor, "B *space P"], tt: Float[Tensor, "B *space"]) -> Data:
        """The kernel."""
        root, r = roots(tt.flatten())
        rows = ti.flatten(0, -2)
        K_ti = gaussian_rows(rows, root, r, self.q, self.column, self.b, self.less)
        return K_ti.view_as(ti), torch.addcmul(self.offset, tt, self.slope)


def freeze_kernel(kernel: Kernel, G_ii: Float[Tensor, "P P"]) -> FrozenKernel | FrozenGaussian:
    """The kernel for prediction. A subclass may have a formula of its own, so only the class itself
    has its special form."""
    g_ii = G_ii.diagonal()
    if type(kernel) is NormalizedGaussian:
        return FrozenGaussian(kernel, g_ii)
    return FrozenKernel(kernel, g_ii)


def copied(module: M) -> M:
    """A copy for evaluation, without gradients."""
    return copy.deepcopy(module).eval().requires_grad_(False)
