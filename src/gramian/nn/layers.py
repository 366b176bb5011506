"""The layers of a model: one turn of Algorithm 1's loop, and the residual block of two of them.

A layer has two halves. ``inducing`` needs no data: it takes the inducing block G_ii through the
layer and returns a state, with all that the data will need. ``data`` takes the data blocks through
the layer, given that state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import GramBlocks
from gramian.gram.conditional import Conditional
from gramian.gram.errors import within
from gramian.nn.contract import ByPath
from gramian.nn.frozen.frozen_layers import (
    FrozenBlock,
    FrozenCentre,
    FrozenLayer,
    FrozenShortcut,
    FrozenState,
)
from gramian.nn.steps.centre import Centre, CentredState
from gramian.nn.steps.conv import KernelConv
from gramian.nn.steps.gram_layer import GramLayer
from gramian.nn.steps.kernels import Kernel
from gramian.nn.steps.norm import GramNorm

if TYPE_CHECKING:
    from gramian.nn.dkm_config import DKMConfig

Space = tuple[int, ...]
State = TypeVar("State")
T = TypeVar("T")


class Layer(nn.Module, ABC, Generic[State]):
    """Gram blocks → Gram blocks, in two halves. A custom layer has three methods to write.

        state = inducing(G_ii, noise),  G', seen = data(G, state),  G'_ii = state.ii

    ``inducing`` and ``data`` are the halves; ``build`` makes the layer from settings that name it.
    G_ii is [P_in, P_in] before the layer and [P, P] after it; the data are [B, H, W, P] or [B, P].

    Noise and results are kept by module path, relative to the layer: SKR's noise of each
    ``GramLayer``, and of what the data half saw, the mean of each ``GramNorm`` and the number of
    variances that each ``GramLayer`` clamped. A state is any dataclass whose ``ii`` is G_ii after
    the layer. A layer with Gram layers gives their KL in ``kl``, and starts them in ``start_``.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from gramian import GramBlocks, Layer
        >>> class Double(Layer):
        ...     def inducing(self, G_ii, noise):
        ...         return SimpleNamespace(ii=2 * G_ii)
        ...     def data(self, gram, state):
        ...         return GramBlocks(state.ii, 2 * gram.ti, 2 * gram.tt_diag), {}
        >>> layer, G = Double(), GramBlocks(torch.eye(3), torch.ones(4, 3), torch.ones(4))
        >>> layer.data(G, layer.inducing(G.ii, {}))[0].tt_diag
        tensor([2., 2., 2., 2.])
    """

    @classmethod
    def build(cls, config: DKMConfig, P_in: int, P: int, space: Space, stride: int) -> Layer[Any]:
        """A layer for a model's settings, which build kernels, convolutions, Gram layers and norms.

        Args:
            config: the settings.
            P_in: inducing points before the layer.
            P: and after it.
            space: (H, W) after it; () for rows.
            stride: of images.
        """
        raise TypeError(f"{cls.__name__} cannot be built from settings: write its build()")

    @abstractmethod
    def inducing(self, G_ii: Float[Tensor, "P_in P_in"], noise: ByPath) -> State:
        """The inducing block through the layer, and what the data will need of it."""

    @abstractmethod
    def data(self, gram: GramBlocks, state: State) -> tuple[GramBlocks, ByPath]:
        """The data blocks through the layer, and what was seen."""

    def kl(self, state: State) -> dict[str, Tensor]:
        """The KL of each Gram layer, times its ν, by path."""
        return {}

    def start_(self, G_ii: Float[Tensor, "P_in P_in"], noise: ByPath) -> Float[Tensor, "P P"]:
        """Start each learned G_ii at the kernel that it meets; G_ii after the layer."""
        return self.inducing(G_ii, noise).ii  # type: ignore[attr-defined]

    def output_space(self, space: Space) -> Space:
        """(H, W) of the output map of a (H, W) map."""
        return space

    def freeze(self, G_ii: Float[Tensor, "P_in P_in"], state: State) -> nn.Module:
        """The layer for prediction only: (ti, tt_diag) → (ti, tt_diag), and unchecked variances."""
        return FrozenState(self, G_ii, state)


@dataclass(frozen=True, slots=True)
class Skip:
    """What a residual block adds to its last layer: w_s · skip + w_m · layer."""

    ti: Float[Tensor, "B *space P"]
    tt_diag: Float[Tensor, "B *space"]
    weights: tuple[float, float]  # (w_s, w_m)


@dataclass(frozen=True, slots=True)
class LayerState:
    """What a layer works out from the inducing points alone."""

    phi_ii: Float[Tensor, "P_in P_in"]  # after the kernel
    K_ii: Float[Tensor, "P P"]  # after the convolution
    conditional: Conditional  # on G̃_ii
    ii: Float[Tensor, "P P"]  # after the normalisation: what the next layer meets
    centred: CentredState | None = None  # before the kernel


class DKMLayer(Layer[LayerState]):
    """kernel → kernel convolution → Gram layer → normalisation: one turn of Algorithm 1's loop.

    (``centre`` puts another step before the kernel, which is not in the paper.)

        Φ = Φ(G)
        K_ii = 1/D Σ_d C_d Φ_ii C_dᵀ,  K_ti(r) = 1/D Σ_d Φ_ti(r + d) C_dᵀ
        G_ti = K_ti K_ii⁻¹ G̃_ii,  g_tt = k_tt + diag(K_ti K_ii⁻¹ (G̃_ii − K_ii) K_ii⁻¹ K_it)

    ``forward`` is the definition, the four steps one after the other. ``data`` has the same numbers
    in fewer passes over memory; the tests compare the two.

    Args:
        kernel: Φ.
        conv: the convolution with mixing C; None for dense data.
        gram: the Gram layer.
        norm: the normalisation.
        centre: centring before the kernel; None for none, as published.

    Example:
        >>> import torch
        >>> from gramian import ConvDKMConfig, DKMLayer, GramBlocks
        >>> layer = DKMLayer.build(ConvDKMConfig(), P_in=4, P=6, space=(4, 4), stride=2).eval()
        >>> G = GramBlocks(torch.eye(4), torch.zeros(2, 8, 8, 4), torch.ones(2, 8, 8))
        >>> layer.conv.start_(torch.Generator().manual_seed(0))
        >>> layer.data(G, layer.inducing(G.ii, {}))[0].ti.shape
        torch.Size([2, 4, 4, 6])
    """

    def __init__(
        self,
        kernel: Kernel,
        conv: KernelConv | None,
        gram: GramLayer,
        norm: GramNorm,
        centre: Centre | None = None,
    ) -> None:
        super().__init__()
        self.centre = centre
        self.kernel = kernel
        self.conv = conv
        self.gram = gram
        self.norm = norm

    @classmethod
    def build(cls, config: DKMConfig, P_in: int, P: int, space: Space, stride: int) -> DKMLayer:
        """The layer of the paper."""
        return cls(
            config.build_kernel(),
            config.build_conv(P_in, P, 3, stride) if space else None,
            config.build_gram(P),
            config.build_norm(P, space),
            Centre(P_in) if config.centre else None,
        )

    def forward(self, gram: GramBlocks, noise: Tensor | None = None) -> tuple[GramBlocks, Tensor]:
        """All blocks through the layer, and its KL: Algorithm 1 as it is written."""
        phi = self.kernel(gram if self.centre is None else self.centre(gram))
        K = phi if self.conv is None else self.conv(phi)
        G, kl = self.gram(K, noise)
        return self.norm(G), kl

    def inducing(self, G_ii: Float[Tensor, "P_in P_in"], noise: ByPath) -> LayerState:
        """The inducing block through the layer."""
        centred, phi_ii, K_ii = self._kernels(G_ii)
        conditional = self.gram.inducing(K_ii, noise.get("gram"))
        return LayerState(phi_ii, K_ii, conditional, self.norm.inducing(conditional.ii), centred)

    def data(
        self, gram: GramBlocks, state: LayerState, skip: Skip | None = None
    ) -> tuple[GramBlocks, ByPath]:
        """The data through the layer; a ``skip`` is added to the result on the way out.

        The factors that belong to the inducing points alone go into the smaller matrices: only the
        kernel's step and the two products pass over the data.
        """
        if self.centre is not None and state.centred is not None:
            gram = self.centre.data(gram, state.centred)
        phi = self.kernel.data(gram, state.phi_ii)
        conditional = state.conditional
        X = self._whitened(phi, state)
        flat = X.flat()
        U, g_tt = self.gram.project(conditional, flat.ti, flat.tt_diag)
        g_tt, num_clamped = self.gram.variance_check(g_tt.view_as(X.tt_diag))
        n_t = self.norm.data_mean(g_tt)
        u, v = self.norm.factors(conditional.ii, n_t)
        w_s, w_m = (0.0, 1.0) if skip is None else skip.weights
        tt_diag = (w_m * v.square()) * g_tt
        if v.numel() > 1:  # a factor of each pixel or image
            U, v = v.expand_as(g_tt).reshape(-1, 1) * U, v.new_ones(1)
        v = v.reshape(1)  # also of a single image, and of a map of one pixel
        if skip is None:
            ti = conditional.cross(U, u * v)
        else:
            ti = conditional.cross(U, w_m * u * v, skip.ti.flatten(0, -2), w_s)
            tt_diag = torch.add(tt_diag, skip.tt_diag, alpha=w_s)
        G = GramBlocks(state.ii, ti, tt_diag.flatten()).shaped_like(X)
        return G, {"norm": n_t.detach(), "gram": num_clamped}

    def kl(self, state: LayerState) -> dict[str, Tensor]:
        """The Gram layer's."""
        return {"gram": self.gram.kl(state.K_ii, state.conditional)}

    def start_(self, G_ii: Float[Tensor, "P_in P_in"], noise: ByPath) -> Float[Tensor, "P P"]:
        """Start G_ii at the kernel K_ii that the layer meets."""
        self.gram.set_to_(self._kernels(G_ii)[-1])
        return self.inducing(G_ii, noise).ii

    def output_space(self, space: Space) -> Space:
        """(H, W) of the output map of a (H, W) map."""
        return space if self.conv is None else self.conv.output_space(space)

    def freeze(
        self, G_ii: Float[Tensor, "P_in P_in"], state: LayerState, weight: float = 1.0
    ) -> nn.Module:
        """For prediction only, times the ``weight`` of a residual branch.

        A subclass may have a formula of its own, so only the class itself has a special form.
        """
        if type(self) is not DKMLayer:
            return super().freeze(G_ii, state)
        centre = None
        if self.centre is not None and state.centred is not None:
            G_ii, centre = state.centred.ii, FrozenCentre(self.centre, state.centred)
        return FrozenLayer(
            self.kernel, self.conv, self.gram, self.norm, G_ii, state.conditional, weight, centre
        )

    def _kernels(
        self, G_ii: Float[Tensor, "P_in P_in"]
    ) -> tuple[CentredState | None, Float[Tensor, "P_in P_in"], Float[Tensor, "P P"]]:
        """G_ii centred, Φ_ii, and K_ii after the convolution."""
        centred = None if self.centre is None else self.centre.inducing(G_ii)
        phi_ii = self.kernel.inducing(G_ii if centred is None else centred.ii)
        return centred, phi_ii, phi_ii if self.conv is None else self.conv.inducing(phi_ii)

    def _whitened(self, phi: GramBlocks, state: LayerState) -> GramBlocks:
        """K_ti L_K⁻ᵀ and k_tt after the convolution: of whitened filters where those are fewer."""
        conditional = state.conditional
        if self.conv is not None:
            if self.conv.whitens_filters(phi.tt_diag.shape):
                return self.conv.data(phi, state.K_ii, conditional.kernel_factor)
            phi = self.conv.data(phi, state.K_ii)
        flat = phi.flat()
        return GramBlocks(phi.ii, conditional.whiten(flat.ti), flat.tt_diag).shaped_like(phi)


class Shortcut(nn.Module):
    """1×1 kernel convolution → normalisation: fits a block's input to its output. No kernel."""

    def __init__(self, conv: KernelConv, norm: GramNorm) -> None:
        super().__init__()
        self.conv = conv
        self.norm = norm

    def forward(self, gram: GramBlocks) -> GramBlocks:
        """All blocks: the definition."""
        return self.norm(self.conv(gram))

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
    """What a residual block works out from the inducing points alone."""

    first: Any  # the state of layer1
    second: Any  # the state of layer2
    shortcut: tuple[Tensor, Tensor] | None
    ii: Float[Tensor, "P P"]


class ResidualBlock(Layer[BlockState]):
    """G = w_s · shortcut(G) + w_m · layer2(layer1(G)): the Gram matrix of stacked features.

    Args:
        layer1: first layer of the main branch; has the stride.
        layer2: second layer.
        shortcut: fits the block's input to its output; None for the identity.
        weights: (w_s, w_m), used as they are. ½ and ½ in the paper.
    """

    def __init__(
        self,
        layer1: Layer[Any],
        layer2: Layer[Any],
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
        w_s, w_m = self.weights
        ii = w_s * (G_ii if shortcut is None else shortcut[1]) + w_m * second.ii
        return BlockState(first, second, shortcut, ii)

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
            out, seen2 = data_with_skip(self.layer2, middle, state.second, skip)
        seen.update(above("layer2", seen2))
        return GramBlocks(state.ii, out.ti, out.tt_diag), seen

    def kl(self, state: BlockState) -> dict[str, Tensor]:
        """Of both layers."""
        first, second = self.layer1.kl(state.first), self.layer2.kl(state.second)
        return {**above("layer1", first), **above("layer2", second)}

    def start_(self, G_ii: Float[Tensor, "P_in P_in"], noise: ByPath) -> Float[Tensor, "P P"]:
        """Start each layer's G_ii at the kernel it meets."""
        with within("layer1"):
            middle_ii = self.layer1.start_(G_ii, below("layer1", noise))
        with within("layer2"):
            self.layer2.start_(middle_ii, below("layer2", noise))
        return self.inducing(G_ii, noise).ii

    def output_space(self, space: Space) -> Space:
        """(H, W) of the output map of a (H, W) map."""
        return self.layer2.output_space(self.layer1.output_space(space))

    def freeze(self, G_ii: Float[Tensor, "P_in P_in"], state: BlockState) -> FrozenBlock:
        """For prediction only."""
        w_s, w_m = self.weights
        second = self.layer2
        shortcut = None
        if self.shortcut is not None and state.shortcut is not None:
            shortcut = FrozenShortcut(
                self.shortcut.conv, self.shortcut.norm, state.shortcut[0], w_s
            )
        return FrozenBlock(
            self.layer1.freeze(G_ii, state.first),
            second.freeze(state.first.ii, state.second, w_m)
            if type(second) is DKMLayer
            else second.freeze(state.first.ii, state.second),
            shortcut,
            self.weights,
        )


def data_with_skip(
    layer: Layer[Any], gram: GramBlocks, state: Any, skip: Skip
) -> tuple[GramBlocks, ByPath]:
    """The data through a layer, plus the skip: in the layer's own product where it can do that."""
    if type(layer) is DKMLayer:
        return layer.data(gram, state, skip)
    G, seen = layer.data(gram, state)
    w_s, w_m = skip.weights
    ti, tt_diag = w_m * G.ti + w_s * skip.ti, w_m * G.tt_diag + w_s * skip.tt_diag
    return GramBlocks(G.ii, ti, tt_diag), seen


LAYERS: dict[str, type[Layer[Any]]] = {"dkm": DKMLayer}
"""Layers by the name that a configuration uses."""


def grams_of(module: nn.Module) -> dict[str, GramLayer]:
    """The Gram layers of a module, by path."""
    return {p: layer for p, layer in module.named_modules() if isinstance(layer, GramLayer)}


def above(name: str, inner: Mapping[str, T]) -> dict[str, T]:
    """Put ``name.`` in front of each path."""
    return {f"{name}.{path}": value for path, value in inner.items()}


def below(name: str, outer: Mapping[str, T]) -> dict[str, T]:
    """The entries whose paths start with ``name.``, without it."""
    start = f"{name}."
    return {p.removeprefix(start): value for p, value in outer.items() if p.startswith(start)}
