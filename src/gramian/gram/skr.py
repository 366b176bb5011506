"""Stochastic kernel regularisation: noise on the learned Gram matrices (paper, section 3.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from gramian.gram.random import normals

REFERENCE = 512
"""Inducing points at which every power of ``SKR`` gives the same γ: those of the paper's stem."""
FIRST = 1 / 16
"""The noise's variance at the start of a warm-up, as a share of its own."""


@dataclass(frozen=True)
class SKR:
    """G̃_ii ~ Wishart(G_ii/γ, γ) + λ I, in training; G̃_ii = G_ii + λ I, in evaluation (Eq. skr).

    Sampling and jitter are independent: each ablation of the paper changes one of them.

        γ = ⌈fraction · 512 · (P/512)^power / share⌉
        share = 1, or in a warm-up max(1/16, progress/warm_up)

    The paper's first stage has P = 512, where all powers agree. An entry of the sample has the
    relative deviation 1/√γ, so with the published γ = P/4 (power 1) few inducing points are noisier
    than many; with power 0 the noise is the same at every width. In a warm-up the variance is only
    a ``share`` of that: before Gram matrices have learnt anything, noise has nothing to protect.

    Args:
        gamma_fraction: degrees of freedom as a share of P; the fewer, the noisier. None: no
            sampling.
        jitter: λ, added to the diagonal in training and in evaluation.
        gamma_power: how γ grows with P: in proportion (1, as published) or less.
        warm_up: share of training in which the noise grows from a sixteenth of its variance to all
            of it; 0 for none, as published.

    Example:
        >>> from gramian import SKR
        >>> SKR().gamma(512), SKR().gamma(64), SKR(gamma_power=0.0).gamma(64)
        (128, 16, 128)
        >>> SKR.off()
        SKR(gamma_fraction=None, jitter=0.0, gamma_power=1.0, warm_up=0.0)
        >>> [SKR(warm_up=0.5).gamma(64, progress) for progress in (0.0, 0.25, 0.5, 1.0)]
        [256, 32, 16, 16]
    """

    gamma_fraction: float | None = 0.25
    jitter: float = 0.1
    gamma_power: float = 1.0
    warm_up: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings without a meaning."""
        if self.gamma_fraction is not None and not 0 < self.gamma_fraction < math.inf:
            raise ValueError(f"gamma_fraction must be positive or None, got {self.gamma_fraction}")
        if not 0 <= self.jitter < math.inf:
            raise ValueError(f"SKR jitter must be 0 or more, got {self.jitter}")
        if not 0 <= self.gamma_power <= 1:
            raise ValueError(f"gamma_power must be in [0, 1], got {self.gamma_power}")
        if not 0 <= self.warm_up <= 1:
            raise ValueError(f"SKR's warm_up must be in [0, 1], got {self.warm_up}")

    @classmethod
    def off(cls) -> SKR:
        """Neither sampling nor jitter: the convolutional DKM before SKR."""
        return cls(gamma_fraction=None, jitter=0.0)

    @property
    def samples(self) -> bool:
        """Whether training draws Wishart samples."""
        return self.gamma_fraction is not None

    def gamma(self, num_inducing: int, progress: float = 1.0) -> int:
        """γ for P inducing points, with a share ``progress`` of training done.

        Rounding first keeps ⌈(1/3)·P⌉ right for multiples of 3.
        """
        if self.gamma_fraction is None:
            raise ValueError("γ is not defined without sampling (gamma_fraction is None)")
        growth = (REFERENCE / num_inducing) ** (1 - self.gamma_power)
        share = min(1.0, max(FIRST, progress / self.warm_up)) if self.warm_up else 1.0
        return math.ceil(round(self.gamma_fraction * num_inducing * growth / share, 9))

    def draw_noise(
        self,
        num_inducing: int,
        generator: torch.Generator,
        dtype: torch.dtype,
        progress: float = 1.0,
    ) -> Float[Tensor, "P gamma"]:
        """Fresh standard normals Z for one layer and one step, on the generator's device."""
        return normals((num_inducing, self.gamma(num_inducing, progress)), generator, dtype)

    def factor(self, L_G: Float[Tensor, "P P"], noise: Tensor | None) -> Float[Tensor, "P columns"]:
        """W with G̃ = W Wᵀ + λ I: the sample's L_G Z/√γ, or L_G itself without noise.

        A sample with more columns than rows is replaced by the triangle R with Rᵀ R = W Wᵀ, so that
        no later product is larger than without noise. With a warm-up W always has P columns, some
        of them 0 where γ < P: the same shapes in every step, as compiled code wants them.
        """
        if noise is None:
            return L_G
        P, shape = len(L_G), tuple(noise.shape)
        least, most = self.gamma(P), self.gamma(P, progress=0.0)
        if len(shape) != 2 or shape[0] != P or not least <= shape[1] <= most:
            grown = f" to {(P, most)} in the warm-up" if most > least else ""
            raise ValueError(f"SKR noise must be P×γ = {(P, least)}{grown}, got {shape}")
        W = L_G @ (noise / math.sqrt(noise.shape[1]))
        if W.shape[1] > P:
            return torch.linalg.qr(W.mT).R.mT
        return pad(W, (0, P - W.shape[1])) if self.warm_up else W
