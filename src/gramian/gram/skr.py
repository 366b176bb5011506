"""Stochastic kernel regularisation: noise on the learned Gram matrices (paper, section 3.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gramian.gram.random import normals


@dataclass(frozen=True)
class SKR:
    """G̃_ii ~ Wishart(G_ii/γ, γ) + λ I, in training; G̃_ii = G_ii + λ I, in evaluation (Eq. skr).

    The two settings are independent: each ablation of the paper changes one of them.

    Args:
        gamma_fraction: γ = ⌈fraction · P⌉ degrees of freedom, fewer than P allowed; the smaller,
            the noisier. None: no sampling.
        jitter: λ, added to the diagonal in training and in evaluation.
    """

    gamma_fraction: float | None = 0.25
    jitter: float = 0.1

    def __post_init__(self) -> None:
        """Refuse settings without a meaning."""
        if self.gamma_fraction is not None and not 0 < self.gamma_fraction < math.inf:
            raise ValueError(f"gamma_fraction must be positive or None, got {self.gamma_fraction}")
        if not 0 <= self.jitter < math.inf:
            raise ValueError(f"SKR jitter must be 0 or more, got {self.jitter}")

    @classmethod
    def off(cls) -> SKR:
        """Neither sampling nor jitter: the convolutional DKM before SKR."""
        return cls(gamma_fraction=None, jitter=0.0)

    @property
    def samples(self) -> bool:
        """Whether training draws Wishart samples."""
        return self.gamma_fraction is not None

    def gamma(self, num_inducing: int) -> int:
        """γ for P inducing points. Rounding first keeps ⌈(1/3)·P⌉ right for multiples of 3."""
        if self.gamma_fraction is None:
            raise ValueError("γ is not defined without sampling (gamma_fraction is None)")
        return math.ceil(round(self.gamma_fraction * num_inducing, 9))

    def draw_noise(
        self, num_inducing: int, generator: torch.Generator, dtype: torch.dtype
    ) -> Float[Tensor, "P gamma"]:
        """Fresh standard normals Z for one layer and one step, on the generator's device."""
        return normals((num_inducing, self.gamma(num_inducing)), generator, dtype)

    def factor(self, L_G: Float[Tensor, "P P"], noise: Tensor | None) -> Float[Tensor, "P columns"]:
        """W with G̃ = W Wᵀ + λ I: the sample's L_G Z/√γ, or L_G itself without noise.

        A sample with more columns than rows is replaced by the triangle R with Rᵀ R = W Wᵀ, so that
        no later product is larger than without noise.
        """
        if noise is None:
            return L_G
        expected = (len(L_G), self.gamma(len(L_G)))
        if noise.shape != expected:
            raise ValueError(f"SKR noise must be P×γ = {expected}, got {tuple(noise.shape)}")
        W = L_G @ (noise / math.sqrt(noise.shape[1]))
        return torch.linalg.qr(W.mT).R.mT if W.shape[1] > len(W) else W
