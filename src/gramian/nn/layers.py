"""One turn of Algorithm 1's loop, and the residual block of two of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import GramBlocks
from gramian.gram.conditional import Conditional
from gramian.gram.errors import within
from gramian.nn.states import (
    BlockDraft,
    BlockState,
    ByPath,
    LayerDraft,
    LayerState,
    Samples,
    above,
    below,
)
from gramian.nn.steps.conv import KernelConv
from gramian.nn.steps.gram_layer import GramLayer, GramSample, condition_together, sample_together
from gramian.nn.steps.kernels import Kernel
from gramian.nn.steps.norm import GramNorm


@dataclass(frozen=True, slots=True)
class Skip:
    """What a residual block adds to its last layer: w_s · skip + w_m · layer."""

    ti: Float[Tensor, "B *space P"]
    tt_diag: Float[Tensor, "B *space"]
    weights: tuple[float, float]  # (w_s, w_m)


class DKMLayer(nn.Module):
    """kernel → kernel convolution → Gram layer → normalisation.

    Args:
        kernel: Φ.
        conv: the convolution with mixing C; None for dense data.
        gram: the Gram layer.
        norm: the normalisation.
    """

    def __init__(
        self, kernel: Kernel, conv: KernelConv | None, gram: GramLayer, norm: GramNorm
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.conv = conv
        self.gram = gram
        self.norm = norm

    def draft(self, G_ii: Float[Tensor, "P_in P_in"], samples: Samples) -> LayerDraft:
        """The inducing block through the layer. Layers factorise their kernels together, later."""
        phi_ii = self.kernel.inducing(G_ii)
        K_ii = phi_ii if self.conv is None else self.conv.inducing(phi_ii)
        sample = samples.get("gram") or self.gram.follow(K_ii)
        return LayerDraft(phi_ii, K_ii, sample, self.norm.inducing(sample.ii))

    def inducing(self, G_ii: Float[Tensor, "P_in P_in"], noise: ByPath) -> LayerState:
        """The inducing block through this layer alone."""
        draft = self.draft(G_ii, sample(self, noise))
        return draft.complete(condition(self, draft.kernels()))

    def data(
        self, gram: GramBlocks, state: LayerState, skip: Skip | None = None
    ) -> tuple[GramBlocks, ByPath]:
        """The data through the layer, with the norm's mean and the number of clamped variances.

        The steps are those of the four modules, with the factors that belong to the inducing points
        alone taken into the smaller matrices: no step but the kernel's and the two products' passes
        over the data. A ``skip`` is added to the result on the way out.
        """
        phi = self.kernel.data(gram, state.phi_ii)
        conditional = state.conditional
        X = self._whitened(phi, state)
        flat = X.flat()
        U, g_tt = conditional.project(flat.ti, flat.tt_diag)
        g_tt, num_clamped = self.gram.variance_check(g_tt.view_as(X.tt_diag))
        n_t = self.norm.data_mean(g_tt)
        u, v = self.norm.factors(conditional.ii, n_t)
        w_s, w_m = (0.0, 1.0) if skip is None else skip.weights
        tt_diag = (w_m * v.square()) * g_tt
        if v.numel() > 1:  # a factor of each pixel or image
            U, v = v.expand_as(g_tt).reshape(-1, 1) * U, v.new_ones(1)
        if skip is None:
            ti = conditional.cross(U, u * v)
        else:
            ti = conditional.cross(U, w_m * u * v, skip.ti.flatten(0, -2), w_s)
            tt_diag = torch.add(tt_diag, skip.tt_diag, alpha=w_s)
        G = GramBlocks(state.ii, ti, tt_diag.flatten()).shaped_like(X)
        return G, {"norm": n_t.detach(), "gram": num_clamped}

    def _whitened(self, phi: GramBlocks, state: LayerState) -> GramBlocks:
        """K_ti L_K⁻ᵀ and k_tt after the convolution: of whitened filters where those are fewer."""
        conditional = state.conditional
        if self.conv is not None:
            space = self.conv.output_space(phi.ti.shape[1:-1])
            if len(phi.ti) * math.prod(space) > self.conv.raw_mixing[0].numel():
                return self.conv.data(phi, state.K_ii, conditional.kernel_factor)
            phi = self.conv.data(phi, state.K_ii)
        flat = phi.flat()
        return GramBlocks(phi.ii, conditional.whiten(flat.ti), flat.tt_diag).shaped_like(phi)

    def start_grams_(self, G_ii: Float[Tensor, "P_in P_in"], noise: ByPath) -> LayerDraft:
        """Start G_ii at the kernel K_ii that the layer meets."""
        phi_ii = self.kernel.inducing(G_ii)
        self.gram.set_to_(phi_ii if self.conv is None else self.conv.inducing(phi_ii))
        return self.draft(G_ii, sample(self, noise))


class Shortcut(nn.Module):
    """1×1 kernel convolution → normalisation: fits a block's input to its output. No kernel."""

    def __init__(self, conv: KernelConv, norm: GramNorm) -> None:
        super().__init__()
        self.conv = conv
        self.norm = norm

    def inducing(
        self, G_ii: Float[Tensor, "P_in P_in"]
    ) -> tuple[Float[Tensor, "P P"], Float[Tensor, "P P"]]:
        """The inducing block after the convolution, and after the normalisation."""
        mixed_ii = self.conv.inducing(G_ii)
        return mixed_ii, self.norm.inducing(mixed_ii)

    def data(
        self, gram: GramBlocks, mixed_ii: Float[Tensor, "P P"], ii: Float[Tensor, "P P"]
    ) -> tuple[GramBlocks, ByPath]:
        """The data through the shortcut, with the norm's mean."""
        mixed = self.conv.data(gram, mixed_ii)
        n_t = self.norm.data_mean(mixed.tt_diag)
        return self.norm.data(mixed, ii, n_t), {"norm": n_t.detach()}


class ResidualBlock(nn.Module):
    """G = w_s · shortcut(G) + w_m · layer2(layer1(G)): the Gram matrix of stacked features.

    Args:
        layer1: first layer of the main branch; has the stride.
        layer2: second layer.
        shortcut: fits the block's input to its output; None for the identity.
        weights: (w_s, w_m), used as they are. ½ and ½ in the paper.
    """

    def __init__(
        self,
        layer1: DKMLayer,
        layer2: DKMLayer,
        shortcut: Shortcut | None,
        weights: tuple[float, float] = (0.5, 0.5),
    ) -> None:
        super().__init__()
        if min(weights) < 0 or sum(weights) == 0:
            raise ValueError(f"residual weights must be 0 or more and not both 0, got {weights}")
        self.layer1 = layer1
        self.layer2 = layer2
        self.shortcut = shortcut
        self.weights = weights

    def draft(self, G_ii: Float[Tensor, "P_in P_in"], samples: Samples) -> BlockDraft:
        """The inducing block through both branches."""
        with within("layer1"):
            first = self.layer1.draft(G_ii, below("layer1", samples))
        with within("layer2"):
            second = self.layer2.draft(first.ii, below("layer2", samples))
        shortcut = None if self.shortcut is None else self.shortcut.inducing(G_ii)
        w_s, w_m = self.weights
        ii = w_s * (G_ii if shortcut is None else shortcut[1]) + w_m * second.ii
        return BlockDraft(first, second, shortcut, ii)

    def inducing(self, G_ii: Float[Tensor, "P_in P_in"], noise: ByPath) -> BlockState:
        """The inducing block through this residual block alone."""
        draft = self.draft(G_ii, sample(self, noise))
        return draft.complete(condition(self, draft.kernels()))

    def data(self, gram: GramBlocks, state: BlockState) -> tuple[GramBlocks, ByPath]:
        """The data through both branches."""
        with within("layer1"):
            middle, seen1 = self.layer1.data(gram, state.first)
        seen = above("layer1", seen1)
        through = gram
        if self.shortcut is not None and state.shortcut is not None:
            through, seen_skip = self.shortcut.data(gram, *state.shortcut)
            seen.update(above("shortcut", seen_skip))
        skip = Skip(through.ti, through.tt_diag, self.weights)
        with within("layer2"):
            out, seen2 = self.layer2.data(middle, state.second, skip)
        seen.update(above("layer2", seen2))
        return GramBlocks(state.ii, out.ti, out.tt_diag), seen

    def start_grams_(self, G_ii: Float[Tensor, "P_in P_in"], noise: ByPath) -> BlockDraft:
        """Start each layer's G_ii at the kernel it meets."""
        with within("layer1"):
            first = self.layer1.start_grams_(G_ii, below("layer1", noise))
        with within("layer2"):
            self.layer2.start_grams_(first.ii, below("layer2", noise))
        return self.draft(G_ii, sample(self, noise))


def grams_of(module: nn.Module) -> dict[str, GramLayer]:
    """The Gram layers of a module, by path."""
    return {p: layer for p, layer in module.named_modules() if isinstance(layer, GramLayer)}


def sample(module: nn.Module, noise: ByPath) -> dict[str, GramSample]:
    """G̃_ii of all Gram layers of a module: parameters and noise are all it takes."""
    return sample_together(grams_of(module), noise)


def condition(
    module: nn.Module, kernels: Mapping[str, tuple[Tensor, GramSample]]
) -> dict[str, tuple[Conditional, Tensor]]:
    """The conditionals and KLs of all Gram layers of a module, factorised together."""
    K_ii = {path: K for path, (K, _) in kernels.items()}
    samples = {path: drawn for path, (_, drawn) in kernels.items()}
    return condition_together(grams_of(module), K_ii, samples)
