"""Layers for prediction only: all that does not depend on the data is computed once.

With K_ii = L Lᵀ and L⁻¹ G̃ L⁻ᵀ = V diag(d) Vᵀ, T = L V makes both matrices diagonal at once,
K_ii = T Tᵀ and G̃ = T diag(d) Tᵀ. So of y = K_ti T⁻ᵀ a Gram layer needs one product and no solve:

    G_ti = K_ti K_ii⁻¹ G̃ = y diag(d) Tᵀ
    g_tt = k_tt + K_ti K_ii⁻¹ (G̃ − K_ii) K_ii⁻¹ K_it = k_tt + Σ_j (d_j − 1) y_j²

T⁻¹ goes into the filters of the convolution before it; the normalisation and the weights of a
residual block go into diag(d) Tᵀ. A rotation of whitened data, y is as well conditioned as they.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import Marginals
from gramian.gram.fast.passes import condition_diagonal
from gramian.gram.fast.windows import mean_of_windows
from gramian.gram.linalg import solve_lower
from gramian.nn.contract import InducingChain
from gramian.nn.frozen.frozen_kernels import Data, copied, freeze_kernel
from gramian.nn.layers import DKMLayer, ResidualBlock, Shortcut
from gramian.nn.states import BlockState, LayerState
from gramian.nn.steps.conv import KernelConv, convolve
from gramian.nn.steps.kernels import Kernel
from gramian.nn.steps.norm import GramNorm

Space = tuple[int, ...]


class Diagonalised:
    """d and T with K_ii = T Tᵀ and G̃ = T diag(d) Tᵀ, in float64."""

    def __init__(self, L: Float[Tensor, "P P"], whitened: Float[Tensor, "P columns"]) -> None:
        R = whitened.double()
        self.d, V = torch.linalg.eigh(R @ R.mT)
        self.T = L.double() @ V
        self._L, self._V = L.double(), V

    def whiten(self, columns: Float[Tensor, "P N"]) -> Float[Tensor, "P N"]:
        """T⁻¹ columns."""
        return self.rotate(solve_lower(self._L, columns.double()))

    def rotate(self, whitened: Float[Tensor, "P N"]) -> Float[Tensor, "P N"]:
        """T⁻¹ columns, of columns that are whitened by L⁻¹ already."""
        return self._V.mT @ whitened.double()


class FrozenNorm(nn.Module):
    """A normalisation whose constant factors are ``columns`` of the product before it.

    One number for v is constant too; v of each pixel, or of the data at hand, is what remains. The
    ``weight`` of a residual branch is a factor like the others.
    """

    v: Tensor
    scale: Tensor

    def __init__(self, norm: GramNorm, G_ii: Float[Tensor, "P P"], weight: float = 1.0) -> None:
        super().__init__()
        if norm.choice.statistics == "batch":
            raise ValueError(
                "a model that normalises by the statistics of the batch at hand cannot be frozen: "
                "its predictions depend on the batch. Use NormChoice(statistics='running')."
            )
        is_constant = norm.running_mean is not None or norm.choice.data == "none"
        n_t = G_ii.new_ones(1) if norm.running_mean is None else norm.running_mean
        u, v = norm.factors(G_ii, n_t)
        self.is_folded = is_constant and v.numel() == 1
        self.columns = weight * u * v if self.is_folded else weight * u
        self.register_buffer("v", v)
        self.register_buffer("scale", weight * v.square())
        self.norm = None if is_constant else copied(norm)

    def forward(self, ti: Float[Tensor, "B *space P"], tt: Float[Tensor, "B *space"]) -> Data:
        """What is not folded into the product: usually v² of tt alone."""
        if self.is_folded:
            return ti, self.scale * tt
        if self.norm is None:
            return self.v[..., None] * ti, self.scale * tt
        n_t = self.norm.data_mean(tt)
        return (self.v * n_t.rsqrt())[..., None] * ti, self.scale / n_t * tt


class FrozenMixing(nn.Module):
    """Filters on ti and window means on tt; a product and nothing for dense data."""

    filters: Tensor

    def __init__(self, conv: KernelConv | None, filters: Tensor, space: Space) -> None:
        super().__init__()
        if filters.ndim == 4:
            filters = filters.contiguous(memory_format=torch.channels_last)
        self.register_buffer("filters", filters)
        self.size, self.stride, self.output_space = 1, 1, space
        if conv is not None:
            self.size, self.stride = conv.filter_size, conv.stride
            self.output_space = conv.output_space(space)

    def forward(self, ti: Float[Tensor, "B *space P_in"], tt_diag: Tensor) -> Data:
        """Mix."""
        if self.filters.ndim == 2:
            return ti @ self.filters.mT, tt_diag
        mixed = convolve(ti, self.filters, self.stride)
        return mixed, mean_of_windows(tt_diag, self.size, self.stride)


class FrozenLayer(nn.Module):
    """kernel → mixing to y → product to G_ti, with the sum over y² for g_tt."""

    spread: Tensor
    product: Tensor

    def __init__(
        self,
        layer: DKMLayer,
        state: LayerState,
        G_ii: Float[Tensor, "P_in P_in"],
        space: Space,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        conditional = state.conditional
        both = Diagonalised(conditional.kernel_factor, conditional.whitened_factor)
        self.kernel = freeze_kernel(layer.kernel, G_ii)
        self.norm = FrozenNorm(layer.norm, conditional.ii, weight)
        dtype = G_ii.dtype
        if layer.conv is None:
            filters = both.whiten(torch.eye(len(both.d), dtype=torch.float64, device=G_ii.device))
        else:
            C = layer.conv.mixing / layer.conv.filter_size**2
            filters = both.whiten(C.flatten(1)).view_as(C)
        self.mixing = FrozenMixing(layer.conv, filters.to(dtype), space)
        self.output_space = self.mixing.output_space
        product = both.d[:, None] * both.T.mT * self.norm.columns
        self.clamp = layer.gram.variance_check.clamp
        self.register_buffer("spread", (both.d - 1).to(dtype))
        self.register_buffer("product", product.to(dtype))

    def forward(
        self, data: Data, skip: Data | None = None, skip_weight: float = 1.0
    ) -> tuple[Data, dict[str, Tensor]]:
        """The data through the layer, plus a weighted ``skip``, and its unchecked variances."""
        y, k_tt = self.mixing(*self.kernel(*data))
        in_product = None if skip is None or not self.norm.is_folded else skip[0].flatten(0, -2)
        ti, more = condition_diagonal(
            y.flatten(0, -2), self.spread, self.product, in_product, skip_weight
        )
        variance = k_tt + more.view_as(k_tt)
        g_tt = variance.clamp_min(0.0) if self.clamp else variance
        ti, tt = self.norm(ti.view(*k_tt.shape, -1), g_tt)
        if skip is not None:
            tt = torch.add(tt, skip[1], alpha=skip_weight)
            ti = ti if in_product is not None else ti + skip_weight * skip[0]
        return (ti, tt), {"": variance}


class FrozenShortcut(nn.Module):
    """1×1 filters with the normalisation and the residual weight in them."""

    def __init__(self, shortcut: Shortcut, mixed_ii: Tensor, space: Space, weight: float) -> None:
        super().__init__()
        self.norm = FrozenNorm(shortcut.norm, mixed_ii, weight)
        C = shortcut.conv.mixing / shortcut.conv.filter_size**2
        columns = self.norm.columns.reshape(-1, 1, 1, 1)
        self.mixing = FrozenMixing(shortcut.conv, C * columns, space)

    def forward(self, data: Data) -> Data:
        """The weighted shortcut."""
        out: Data = self.norm(*self.mixing(*data))
        return out


class FrozenBlock(nn.Module):
    """Two layers; the second adds the skip in its product."""

    def __init__(
        self,
        block: ResidualBlock,
        state: BlockState,
        G_ii: Float[Tensor, "P_in P_in"],
        space: Space,
    ) -> None:
        super().__init__()
        w_s, w_m = block.weights
        self.layer1 = FrozenLayer(block.layer1, state.first, G_ii, space)
        middle = self.layer1.output_space
        self.layer2 = FrozenLayer(block.layer2, state.second, state.first.ii, middle, w_m)
        self.output_space = self.layer2.output_space
        self.shortcut = None
        self.skip_weight = w_s
        if block.shortcut is not None and state.shortcut is not None:
            self.shortcut = FrozenShortcut(block.shortcut, state.shortcut[0], space, w_s)
            self.skip_weight = 1.0

    def forward(self, data: Data) -> tuple[Data, dict[str, Tensor]]:
        """Both branches, and the variances of both layers."""
        middle, first = self.layer1(data)
        skip = data if self.shortcut is None else self.shortcut(data)
        out, second = self.layer2(middle, skip, self.skip_weight)
        return out, {".layer1": first[""], ".layer2": second[""]}


class FrozenOutput(nn.Module):
    """kernel → y → mean and variance of the outputs."""

    filters: Tensor
    spread: Tensor
    means: Tensor

    def __init__(self, kernel: Kernel, norm: GramNorm, chain: InducingChain) -> None:
        super().__init__()
        state, G_ii = chain.output, chain.pooled.ii
        both = Diagonalised(state.kernel_factor, state.whitened_factor)
        self.kernel = freeze_kernel(kernel, G_ii)
        self.norm = FrozenNorm(norm, chain.K_ii)
        columns = torch.diag(self.norm.columns.double().expand(len(G_ii)))
        for name, value in {
            "filters": both.whiten(columns).mT,
            "spread": both.d - 1,
            "means": both.rotate(state.whitened_mean),
        }.items():
            self.register_buffer(name, value.to(G_ii.dtype).clone())

    def forward(self, data: Data) -> Marginals:
        """Marginals of pooled data."""
        ti, k_tt = self.norm(*self.kernel(*data))
        y = ti @ self.filters
        mean, more = condition_diagonal(y, self.spread, self.means)
        return Marginals(mean, (k_tt + more)[:, None])


def freeze_layers(
    layers: dict[str, DKMLayer | ResidualBlock], chain: InducingChain, space: Space
) -> dict[str, FrozenLayer | FrozenBlock]:
    """The frozen form of all layers; ``space`` is (H, W) of the first one's input."""
    G_ii, frozen = chain.input_ii, dict[str, FrozenLayer | FrozenBlock]()
    for name, layer in layers.items():
        state = chain.layers[name]
        kind = FrozenBlock if isinstance(layer, ResidualBlock) else FrozenLayer
        frozen[name] = kind(layer, state, G_ii, space)  # type: ignore[arg-type]
        G_ii, space = state.ii, frozen[name].output_space
    return frozen
