"""One turn of Algorithm 1's loop, and the residual block of two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import GramBlocks
from gramian.gram.conditional import Conditional
from gramian.gram.errors import within
from gramian.nn.conv import KernelConv
from gramian.nn.gram_layer import GramLayer
from gramian.nn.kernels import Kernel
from gramian.nn.norm import GramNorm

ByPath = Mapping[str, Tensor]
"""Tensors by module path: noise and KL of a Gram layer, mean of a norm, clamps of a layer."""


@dataclass(frozen=True, slots=True)
class LayerState:
    """What a layer has worked out from the inducing points alone."""

    phi_ii: Float[Tensor, "P_in P_in"]  # after the kernel
    K_ii: Float[Tensor, "P P"]  # after the convolution
    conditional: Conditional  # on G̃_ii
    ii: Float[Tensor, "P P"]  # after the normalisation: what the next layer meets
    kl: ByPath


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

    def inducing(self, G_ii: Float[Tensor, "P_in P_in"], noise: ByPath) -> LayerState:
        """The inducing block through the layer."""
        phi_ii = self.kernel.inducing(G_ii)
        K_ii = phi_ii if self.conv is None else self.conv.inducing(phi_ii)
        conditional, kl = self.gram.inducing(K_ii, noise.get("gram"))
        ii = self.norm.inducing(conditional.ii)
        return LayerState(phi_ii, K_ii, conditional, ii, {"gram": kl})

    def data(self, gram: GramBlocks, state: LayerState) -> tuple[GramBlocks, ByPath]:
        """The data through the layer, with the norm's mean and the number of clamped variances."""
        phi = self.kernel.data(gram, state.phi_ii)
        K = phi if self.conv is None else self.conv.data(phi, state.K_ii)
        G, num_clamped = self.gram.data(K, state.conditional)
        n_t = self.norm.data_mean(G.tt_diag)
        return self.norm.data(G, state.ii, n_t), {"norm": n_t.detach(), "gram": num_clamped}

    def start_grams_(self, G_ii: Float[Tensor, "P_in P_in"], noise: ByPath) -> LayerState:
        """Start G_ii at the kernel K_ii that the layer meets."""
        phi_ii = self.kernel.inducing(G_ii)
        self.gram.set_to_(phi_ii if self.conv is None else self.conv.inducing(phi_ii))
        return self.inducing(G_ii, noise)


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


@dataclass(frozen=True, slots=True)
class BlockState:
    """What a residual block has worked out from the inducing points alone."""

    first: LayerState
    second: LayerState
    shortcut: tuple[Tensor, Tensor] | None
    ii: Float[Tensor, "P P"]
    kl: ByPath


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

    def inducing(self, G_ii: Float[Tensor, "P_in P_in"], noise: ByPath) -> BlockState:
        """The inducing block through both branches."""
        with within("layer1"):
            first = self.layer1.inducing(G_ii, below("layer1", noise))
        with within("layer2"):
            second = self.layer2.inducing(first.ii, below("layer2", noise))
        shortcut = None if self.shortcut is None else self.shortcut.inducing(G_ii)
        ii = self._combine(G_ii if shortcut is None else shortcut[1], second.ii)
        kl = {**above("layer1", first.kl), **above("layer2", second.kl)}
        return BlockState(first, second, shortcut, ii, kl)

    def data(self, gram: GramBlocks, state: BlockState) -> tuple[GramBlocks, ByPath]:
        """The data through both branches."""
        with within("layer1"):
            middle, seen1 = self.layer1.data(gram, state.first)
        with within("layer2"):
            main, seen2 = self.layer2.data(middle, state.second)
        seen = {**above("layer1", seen1), **above("layer2", seen2)}
        skip = gram
        if self.shortcut is not None and state.shortcut is not None:
            skip, seen_skip = self.shortcut.data(gram, *state.shortcut)
            seen.update(above("shortcut", seen_skip))
        ti = self._combine(skip.ti, main.ti)
        tt_diag = self._combine(skip.tt_diag, main.tt_diag)
        return GramBlocks(state.ii, ti, tt_diag), seen

    def start_grams_(self, G_ii: Float[Tensor, "P_in P_in"], noise: ByPath) -> BlockState:
        """Start each layer's G_ii at the kernel it meets."""
        with within("layer1"):
            first = self.layer1.start_grams_(G_ii, below("layer1", noise))
        with within("layer2"):
            self.layer2.start_grams_(first.ii, below("layer2", noise))
        return self.inducing(G_ii, noise)

    def _combine(self, skip: Tensor, main: Tensor) -> Tensor:
        w_s, w_m = self.weights
        return w_s * skip + w_m * main


def above(name: str, inner: ByPath) -> dict[str, Tensor]:
    """Put ``name.`` in front of each path."""
    return {f"{name}.{path}": value for path, value in inner.items()}


def below(name: str, outer: ByPath) -> dict[str, Tensor]:
    """The entries whose paths start with ``name.``, without it."""
    start = f"{name}."
    return {p.removeprefix(start): value for p, value in outer.items() if p.startswith(start)}
