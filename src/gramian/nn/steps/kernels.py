"""Kernels: functions of the Gram matrix, entry by entry.

A custom kernel needs one method, ``pairs``: the kernel of two points from the three numbers
that Gram blocks hold about them.

    class Quadratic(Kernel):
        def pairs(self, c, x, y):
            return c.square()

Example:
    >>> from gramian import KERNELS
    >>> list(KERNELS)
    ['normalized_gaussian', 'arc_cosine', 'squared_exponential', 'matern32', 'matern52']
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import GramBlocks
from gramian.gram.fast.passes import normalized_gaussian
from gramian.nn.parameters import start_at


@dataclass(frozen=True)
class Jitter:
    """x → (1 + relative)·x + absolute, on the diagonal of a kernel: numerical safety only.

    Args:
        relative: share of each diagonal entry that is added to it.
        absolute: added to each diagonal entry.

    Example:
        >>> import torch
        >>> from gramian import Jitter
        >>> Jitter(relative=0.1, absolute=0.01).on_matrix(torch.ones(2, 2))
        tensor([[1.1100, 1.0000],
                [1.0000, 1.1100]])
    """

    relative: float = 1e-4
    absolute: float = 1e-4

    def __post_init__(self) -> None:
        """Refuse what would take from the diagonal."""
        for name in ("relative", "absolute"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ValueError(f"the {name} kernel jitter must be 0 or more, got {value}")

    def __call__(self, diagonal: Tensor) -> Tensor:
        """Inflate diagonal entries."""
        absolute = diagonal.new_full((), self.absolute)
        return torch.add(absolute, diagonal, alpha=1 + self.relative)

    def on_matrix(self, matrix: Float[Tensor, "Pi Pi"]) -> Float[Tensor, "Pi Pi"]:
        """Inflate the diagonal of a matrix."""
        extra = self.relative * matrix.diagonal() + self.absolute
        return matrix + torch.diag(extra)


@dataclass(frozen=True)
class Bandwidth:
    """β, how fast a kernel falls off: of the angle, or of the squared distance d².

        normalized_gaussian: exp(β (cos − 1)),  squared_exponential: exp(−β d²/2)

    Args:
        start: its value, or where it starts. 1 is the kernel as published.
        learned: learn it, one number for each kernel.

    Example:
        >>> import torch
        >>> from gramian import KERNELS, Bandwidth
        >>> for beta in (1.0, 4.0):  # of two points at a right angle: exp(−β)
        ...     kernel = KERNELS["normalized_gaussian"](bias_var=None, bandwidth=Bandwidth(beta))
        ...     print(round(kernel.inducing(torch.eye(2))[0, 1].item(), 3))
        0.368
        0.018
    """

    start: float = 1.0
    learned: bool = False

    def __post_init__(self) -> None:
        """Refuse what makes no positive definite kernel."""
        if not 0 < self.start < math.inf:
            raise ValueError(f"the start of a bandwidth must be positive, got {self.start}")


class Kernel(nn.Module, ABC):
    """K = w·k(G) + b, then jitter on the diagonals of ``ii`` and ``tt``.

    Gram blocks → Gram blocks of the same shapes, entry by entry. A custom kernel writes ``pairs``.

    Args:
        weight_var: start value of the learned weight variance w; None for a fixed 1.
        bias_var: start value of the learned bias variance b; None for none.
        jitter: diagonal inflation.
        bandwidth: β, for kernels that have one.

    Example:
        >>> import torch
        >>> from gramian import Jitter, Kernel
        >>> class Quadratic(Kernel):
        ...     def pairs(self, c, x, y):
        ...         return c.square()
        >>> kernel = Quadratic(weight_var=None, bias_var=None, jitter=Jitter(0.0, 0.0))
        >>> kernel.inducing(torch.tensor([[2.0, 0.5], [0.5, 1.0]]))
        tensor([[4.0000, 0.2500],
                [0.2500, 1.0000]])
    """

    has_bandwidth: ClassVar[bool] = False
    """Whether k has a β, which it takes from ``beta``."""

    cost: ClassVar[tuple[int, int]] = (6, 148)
    """Matrices that it keeps for its gradient, and its passes over memory (both measured, for the
    estimate of full-rank models; one that nobody has measured has the most of ours)."""

    log_weight_var: nn.Parameter | None
    log_bias_var: nn.Parameter | None
    log_bandwidth: nn.Parameter | None

    def __init__(
        self,
        weight_var: float | None = 1.0,
        bias_var: float | None = 0.1,
        jitter: Jitter = Jitter(),
        bandwidth: Bandwidth = Bandwidth(),
    ) -> None:
        super().__init__()
        if bandwidth != Bandwidth() and not self.has_bandwidth:
            raise ValueError(f"the kernel {type(self).__name__} has no bandwidth: leave it at 1")
        self.log_weight_var = _log_parameter(weight_var)
        self.log_bias_var = _log_parameter(bias_var)
        self.log_bandwidth = _log_parameter(bandwidth.start if bandwidth.learned else None)
        self.jitter = jitter
        self.bandwidth = bandwidth

    @abstractmethod
    def pairs(self, c: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """k of two points with G_ab = c, G_aa = x and G_bb = y (broadcast against each other)."""

    def diagonal(self, x: Tensor) -> Tensor:
        """k of a point with itself, where G_aa = x."""
        return self.pairs(x, x, x)

    def inducing(self, G_ii: Float[Tensor, "Pi Pi"]) -> Float[Tensor, "Pi Pi"]:
        """K_ii."""
        return self.jitter.on_matrix(self._inducing(G_ii))

    def data(self, gram: GramBlocks, K_ii: Float[Tensor, "Pi Pi"]) -> GramBlocks:
        """K_ti and k_tt."""
        flat = gram.flat()
        ti = self.rows(flat.ti, flat.tt_diag, flat.ii.diagonal()).view_as(gram.ti)
        return GramBlocks(K_ii, ti, self.jitter(self.data_diagonal(gram.tt_diag)))

    def forward(self, gram: GramBlocks) -> GramBlocks:
        """K(G) for all blocks."""
        return self.data(gram, self.inducing(gram.ii))

    def _inducing(self, G_ii: Float[Tensor, "Pi Pi"]) -> Float[Tensor, "Pi Pi"]:
        g_ii = G_ii.diagonal()
        return self.rows(G_ii, g_ii, g_ii)

    def every(self, c: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """w·k + b of any pairs of points, before the jitter (broadcast as in ``pairs``)."""
        return self._affine(self.pairs(c, x, y))

    def rows(
        self, c: Float[Tensor, "N Pi"], x: Float[Tensor, " N"], y: Float[Tensor, " Pi"]
    ) -> Float[Tensor, "N Pi"]:
        """w·k + b of N points with P, before the jitter."""
        return self.every(c, x[:, None], y)

    def data_diagonal(self, tt_diag: Float[Tensor, "B *space"]) -> Float[Tensor, "B *space"]:
        """w·k + b of data points with themselves, before the jitter."""
        return self._affine(self.diagonal(tt_diag))

    def variances(self, like: Tensor) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """w and b, of the dtype and device of ``like``; 1 and 0 where there is none."""
        w, b = self.log_weight_var, self.log_bias_var
        one, zero = like.new_ones(()), like.new_zeros(())
        return one if w is None else w.exp(), zero if b is None else b.exp()

    def beta(self, like: Tensor) -> Float[Tensor, ""]:
        """β, of the dtype and device of ``like``."""
        if self.log_bandwidth is None:
            return like.new_full((), self.bandwidth.start)
        return self.log_bandwidth.exp()

    def _affine(self, k: Tensor) -> Tensor:
        w, b = self.variances(k)
        return torch.addcmul(b, w, k)

    def __add__(self, other: Kernel) -> Kernel:
        """Sum of two kernels."""
        return SumKernel(self, other)

    def __mul__(self, other: Kernel) -> Kernel:
        """Product of two kernels."""
        return ProductKernel(self, other)

    def extra_repr(self) -> str:
        """The jitter and the bandwidth, for ``print``."""
        return f"{self.jitter}, {self.bandwidth}" if self.has_bandwidth else f"{self.jitter}"


class NormalizedGaussian(Kernel):
    """k = s·exp(β(c/s − 1)), s = √(xy): a Gaussian of the angle (Shankar et al. 2020; there β = 1).

    Its diagonal is that of G. A point of norm zero has kernel zero with all others. c/s is a
    cosine, so with β = 1 k/s is between e⁻² and 1, nearly linear; the larger β, the more contrast.
    """

    cost = (2, 46)
    has_bandwidth = True

    def pairs(self, c: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return s·exp(β(c/s − 1))."""
        s = (x * y).clamp_min(torch.finfo(c.dtype).tiny).sqrt()
        return s * (self.beta(c) * (c / s - 1)).exp()

    def diagonal(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def rows(
        self, c: Float[Tensor, "N Pi"], x: Float[Tensor, " N"], y: Float[Tensor, " Pi"]
    ) -> Float[Tensor, "N Pi"]:
        """w·k + b in one pass over c."""
        return normalized_gaussian(c, x, y, *self.variances(c), self.beta(c))


class ArcCosine(Kernel):
    """k = (√(m − c²) + (π − arccos(c/√m))·c)/π, m = x'y': order 1, the ReLU (Cho & Saul 2009).

    The diagonals x, y are inflated by the jitter first, x' = (1 + relative)·x + absolute, which
    keeps m − c² positive. As published, the diagonal of ``ii`` is x' and that of ``tt`` is x.
    """

    def pairs(self, c: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the arc-cosine kernel of the inflated diagonals."""
        tiny = torch.finfo(c.dtype).tiny
        m = (self.jitter(x) * self.jitter(y)).clamp_min(tiny)
        inside = (m - c.square()).clamp_min(tiny)  # rounding only: Cauchy-Schwarz gives c² < m
        angle = torch.atan2(inside.sqrt(), c)
        return (inside.sqrt() + (math.pi - angle) * c) / math.pi

    def diagonal(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def _inducing(self, G_ii: Float[Tensor, "Pi Pi"]) -> Float[Tensor, "Pi Pi"]:
        g_ii = G_ii.diagonal()
        eye = torch.eye(len(G_ii), dtype=torch.bool, device=G_ii.device)
        # Off the diagonal only: at c² = m the derivative of the square root is infinite.
        apart = torch.where(eye, torch.zeros_like(G_ii), G_ii)
        k = torch.where(eye, self.jitter(g_ii), self.pairs(apart, g_ii[:, None], g_ii))
        return self._affine(k)


class SquaredExponential(Kernel):
    """k = exp(−βd²/2), d² = x + y − 2c the squared distance of the features."""

    cost = (2, 45)
    has_bandwidth = True

    def pairs(self, c: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return exp(−βd²/2)."""
        return (self.beta(c) * (c - (x + y) / 2)).exp()


class Matern32(Kernel):
    """k = (1 + √3 d)·exp(−√3 d), d² = β(x + y − 2c)."""

    cost = (4, 81)
    has_bandwidth = True

    def pairs(self, c: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the Matérn kernel of smoothness 3/2."""
        d = math.sqrt(3) * _distance(c, x, y, self.beta(c))
        return (1 + d) * (-d).exp()


class Matern52(Kernel):
    """k = (1 + √5 d + 5d²/3)·exp(−√5 d), d² = β(x + y − 2c)."""

    cost = (5, 100)
    has_bandwidth = True

    def pairs(self, c: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the Matérn kernel of smoothness 5/2."""
        d = math.sqrt(5) * _distance(c, x, y, self.beta(c))
        return (1 + d + d.square() / 3) * (-d).exp()


class Linear(Kernel):
    """k = c: the features as they are.

    Of no more rank than there are features, so it is not in ``KERNELS``: inducing points want more.
    """

    cost = (1, 24)

    def pairs(self, c: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return c."""
        return c


class _Composite(Kernel):
    """Two kernels, each with its own variances, joined block by block; jitter is added once."""

    def __init__(self, first: Kernel, second: Kernel, jitter: Jitter = Jitter()) -> None:
        super().__init__(weight_var=None, bias_var=None, jitter=jitter)
        self.first = first
        self.second = second

    def _inducing(self, G_ii: Float[Tensor, "Pi Pi"]) -> Float[Tensor, "Pi Pi"]:
        return self.join(self.first._inducing(G_ii), self.second._inducing(G_ii))

    def rows(
        self, c: Float[Tensor, "N Pi"], x: Float[Tensor, " N"], y: Float[Tensor, " Pi"]
    ) -> Float[Tensor, "N Pi"]:
        """Both kernels' values, joined."""
        return self.join(self.first.rows(c, x, y), self.second.rows(c, x, y))

    def data_diagonal(self, tt_diag: Float[Tensor, "B *space"]) -> Float[Tensor, "B *space"]:
        """Both kernels' values, joined."""
        return self.join(self.first.data_diagonal(tt_diag), self.second.data_diagonal(tt_diag))

    def pairs(self, c: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Join the two kernels' values."""
        return self.join(self.first.every(c, x, y), self.second.every(c, x, y))

    def every(self, c: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Both kernels' values, joined: a composite has no variances of its own."""
        return self.pairs(c, x, y)

    @abstractmethod
    def join(self, first: Tensor, second: Tensor) -> Tensor:
        """How the two values become one."""


class SumKernel(_Composite):
    """k = k₁ + k₂."""

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        """Add."""
        return first + second


class ProductKernel(_Composite):
    """k = k₁ · k₂."""

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        """Multiply."""
        return first * second


KERNELS: dict[str, type[Kernel]] = {
    "normalized_gaussian": NormalizedGaussian,
    "arc_cosine": ArcCosine,
    "squared_exponential": SquaredExponential,
    "matern32": Matern32,
    "matern52": Matern52,
}
"""Kernels by the name that a configuration uses. Add your own: ``KERNELS["mine"] = Mine``."""


def _distance(c: Tensor, x: Tensor, y: Tensor, beta: Tensor) -> Tensor:
    """d = √β(x + y − 2c), with a finite slope at d = 0: the Matérn kernels are smooth in d²."""
    squared = beta * (x + y - 2 * c).clamp_min(0.0)
    return (squared + torch.finfo(c.dtype).tiny).sqrt()


def _log_parameter(start: float | None) -> nn.Parameter | None:
    if start is None:
        return None
    if start <= 0:
        raise ValueError(f"a kernel variance must be positive, got {start}; None leaves it out")
    return start_at(math.log(start))
