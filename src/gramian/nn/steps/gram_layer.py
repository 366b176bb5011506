"""The Gram layer: where a deep kernel machine learns."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gramian.gram.blocks import GramBlocks
from gramian.gram.conditional import Conditional, VarianceCheck, with_jitter
from gramian.gram.divergence import Divergence, gaussian_divergence
from gramian.gram.linalg import cholesky, cholesky_of_each, solve_lower
from gramian.gram.skr import SKR
from gramian.nn.steps.positive_definite import PositiveDefinite, factor_from


@dataclass(frozen=True, slots=True)
class GramSample:
    """What a layer makes of its parameters and noise alone, before it meets a kernel."""

    root: Float[Tensor, "P P"]  # L_G, with G_ii = L_G L_Gᵀ
    factor: Float[Tensor, "P columns"]  # W, of γ columns or P
    ii: Float[Tensor, "P P"]  # G̃_ii = W Wᵀ + λ I


class GramLayer(nn.Module):
    """Replace K_ii by a learned G_ii, and let the data follow (Algorithm 1; Eq. gram_ind_prop).

        G̃_ii = G_ii, with SKR's noise in training and its jitter always
        G_ti = K_ti K_ii⁻¹ G̃_ii
        G_tt = K_ti K_ii⁻¹ G̃_ii K_ii⁻¹ K_it + K_tt − K_ti K_ii⁻¹ K_it
        kl   = ν · D(N(0, G_ii) ‖ N(0, K_ii)), of the G_ii without noise and jitter

    With ν = ∞ there is nothing to learn: G_ii = K_ii, the NNGP.

    Args:
        num_inducing: P.
        nu: ν, the weight of the pull towards the kernel.
        divergence: which D.
        skr: stochastic kernel regularisation.
        variance_check: what to do about negative entries of G_tt.
    """

    def __init__(
        self,
        num_inducing: int,
        nu: float = 0.001,
        divergence: Divergence = "taylor",
        skr: SKR = SKR(),
        variance_check: VarianceCheck = VarianceCheck(),
    ) -> None:
        super().__init__()
        if not nu >= 0:
            raise ValueError(f"nu must be 0 or more, or infinity, got {nu}")
        self.inducing_gram = None if nu == math.inf else PositiveDefinite(num_inducing)
        self.num_inducing = num_inducing
        self.nu = nu
        self.divergence: Divergence = divergence
        self.skr = skr
        self.variance_check = variance_check

    def inducing(
        self, K_ii: Float[Tensor, "Pi Pi"], noise: Float[Tensor, "Pi gamma"] | None = None
    ) -> tuple[Conditional, Float[Tensor, ""]]:
        """Condition on G̃_ii, and the layer's KL. ``noise`` is needed to train with sampling."""
        samples = sample_together({"": self}, {} if noise is None else {"": noise})
        sample = samples.get("") or self.follow(K_ii)
        return condition_together({"": self}, {"": K_ii}, {"": sample})[""]

    def follow(self, K_ii: Float[Tensor, "Pi Pi"]) -> GramSample:
        """The sample of a layer with ν = ∞: G_ii is the kernel it meets."""
        L_K = cholesky(K_ii, what="K_ii")
        return GramSample(L_K, L_K, _gram_of(L_K, self.skr.jitter))

    def data(self, K: GramBlocks, conditional: Conditional) -> tuple[GramBlocks, Int[Tensor, ""]]:
        """G_ti and g_tt, and how many negative variances were clamped."""
        flat = K.flat()
        U, g_tt = conditional.project(conditional.whiten(flat.ti), flat.tt_diag)
        g_tt, num_clamped = self.variance_check(g_tt)
        G = GramBlocks(conditional.ii, conditional.cross(U), g_tt)
        return G.shaped_like(K), num_clamped

    def forward(
        self, K: GramBlocks, noise: Float[Tensor, "Pi gamma"] | None = None
    ) -> tuple[GramBlocks, Float[Tensor, ""]]:
        """All blocks of G̃, and the layer's KL."""
        conditional, kl = self.inducing(K.ii, noise)
        gram, _ = self.data(K, conditional)
        return gram, kl

    @property
    def samples(self) -> bool:
        """Whether a pass in the present mode needs noise."""
        return self.training and self.skr.samples

    def set_to_(self, K_ii: Float[Tensor, "Pi Pi"]) -> None:
        """Start at G_ii = K_ii."""
        if self.inducing_gram is not None:
            self.inducing_gram.set_to_(K_ii, what="K_ii")

    def check_noise(self, noise: Tensor | None) -> None:
        """Raise unless there is noise just when a pass in the present mode needs it."""
        if self.samples and noise is None:
            raise ValueError(
                "training with SKR needs noise: pass model.draw_noise(generator), "
                "or call model.eval() for predictions"
            )
        if noise is not None and not self.samples:
            raise ValueError(
                "noise was passed, but SKR samples only in training mode with a gamma_fraction"
            )

    def extra_repr(self) -> str:
        """Settings, for ``print``."""
        return f"{self.num_inducing}, nu={self.nu:g}, {self.divergence}, {self.skr}"


def sample_together(
    layers: Mapping[str, GramLayer], noise: Mapping[str, Tensor]
) -> dict[str, GramSample]:
    """G̃_ii of each layer, by path, without those of ν = ∞. Layers of one size are one batch."""
    samples: dict[str, GramSample] = {}
    for path, layer in layers.items():
        layer.check_noise(noise.get(path))
    free = {path: layer for path, layer in layers.items() if layer.inducing_gram is not None}

    def alike(path: str) -> Hashable:
        return free[path].num_inducing, free[path].skr, path in noise

    for paths in _groups(free, alike):
        grams = [free[path].inducing_gram for path in paths]
        skr = free[paths[0]].skr
        L_G = factor_from(torch.stack([gram.raw_factor for gram in grams if gram is not None]))
        Z = torch.stack([noise[path] for path in paths]) if paths[0] in noise else None
        W = skr.factor(L_G, Z)
        parts = zip(L_G, W, _gram_of(W, skr.jitter), strict=True)
        samples.update(zip(paths, (GramSample(*part) for part in parts), strict=True))
    return samples


def condition_together(
    layers: Mapping[str, GramLayer],
    K_ii: Mapping[str, Float[Tensor, "Pi Pi"]],
    samples: Mapping[str, GramSample],
) -> dict[str, tuple[Conditional, Float[Tensor, ""]]]:
    """The conditional and the KL of each layer, by path. Layers of one size are one batch."""
    conditioned: dict[str, tuple[Conditional, Tensor]] = {}

    def alike(path: str) -> Hashable:
        layer, follows = layers[path], layers[path].inducing_gram is None
        shape = samples[path].factor.shape  # fewer columns where SKR samples
        return shape, layer.skr, layer.divergence, layer.nu == 0, follows

    for paths in _groups(layers, alike):
        first = layers[paths[0]]
        K = torch.stack([K_ii[path] for path in paths])
        L_G = torch.stack([samples[path].root for path in paths])
        W = torch.stack([samples[path].factor for path in paths])
        follows = first.inducing_gram is None
        parents = [path.rpartition(".")[0] for path in paths]
        L_K = L_G if follows else cholesky_of_each(K, parents, what="K_ii")
        R = solve_lower(L_K, with_jitter(W, first.skr.jitter))
        kl = K.new_zeros(len(paths))
        if first.nu > 0 and not follows:
            nu = K.new_tensor([layers[path].nu for path in paths])
            kl = nu * gaussian_divergence(first.divergence, K, L_K, L_G)
        for path, own_L_K, own_R, own_kl in zip(paths, L_K, R, kl, strict=True):
            sample = samples[path]
            conditional = Conditional(own_L_K, sample.factor, own_R, first.skr.jitter, sample.ii)
            conditioned[path] = conditional, own_kl
    return conditioned


def _gram_of(W: Float[Tensor, "*layers P gamma"], jitter: float) -> Float[Tensor, "*layers P P"]:
    """W Wᵀ + λ I."""
    G = W @ W.mT
    return G + jitter * torch.eye(G.shape[-1], dtype=G.dtype, device=G.device) if jitter else G


def _groups(paths: Iterable[str], key: Callable[[str], Hashable]) -> list[list[str]]:
    """Paths with equal keys together, in the order of their first members."""
    groups: dict[Hashable, list[str]] = {}
    for path in paths:
        groups.setdefault(key(path), []).append(path)
    return list(groups.values())
