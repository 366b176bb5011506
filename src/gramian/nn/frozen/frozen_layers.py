"""Layers for prediction only: all that does not depend on the data is computed once.

With K_ii = L Lᵀ and L⁻¹ G̃ L⁻ᵀ = V diag(d) Vᵀ, T = L V makes both matrices diagonal at once,
K_ii = T Tᵀ and G̃ = T diag(d) Tᵀ. So of y = K_ti T⁻ᵀ a Gram layer needs one product and no solve:

    G_ti = K_ti K_ii⁻¹ G̃ = y diag(d) Tᵀ
    g_tt = k_tt + K_ti K_ii⁻¹ (G̃ − K_ii) K_ii⁻¹ K_it = k_tt + Σ_j (d_j − 1) y_j²

(Σ_j d_j y_j² where the unexplained variance is dropped.)

T⁻¹ goes into the filters of the convolution before it; the normalisation and the weights of a
residual block go into diag(d) Tᵀ. A rotation of whitened data, y is as well conditioned as they.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import GramBlocks, Marginals
from gramian.gram.conditional import Conditional
from gramian.gram.fast.passes import condition_diagonal
from gramian.gram.fast.windows import mean_of_windows
from gramian.gram.linalg import solve_lower
from gramian.nn.frozen.frozen_kernels import Data, copied, freeze_kernel
from gramian.nn.steps.centre import Centre, CentredState
from gramian.nn.steps.conv import KernelConv, convolve
from gramian.nn.steps.gram_layer import GramLayer
from gramian.nn.steps.kernels import Kernel
from gramian.nn.steps.norm import GramNorm
from gramian.nn.steps.output import OutputState


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


class FrozenCentre(nn.Module):
    """Centring with b and m worked out: ti − d 1ᵀ − 1 bᵀ + m and tt − 2 d + m, d = ti a."""

    weights: Tensor
    shift: Tensor
    m: Tensor

    def __init__(self, centre: Centre, state: CentredState) -> None:
        super().__init__()
        self.register_buffer("weights", centre.weights.detach().clone())
        self.register_buffer("shift", state.m - state.b)
        self.register_buffer("m", state.m.clone())

    def forward(self, ti: Float[Tensor, "B *space P"], tt: Float[Tensor, "B *space"]) -> Data:
        """Centre."""
        d = ti @ self.weights
        return ti - d[..., None] + self.shift, Centre.squares(tt, d, self.m)


class FrozenNorm(nn.Module):
    """A normalisation whose constant factors are ``columns`` of the product before it.

    One number for v is constant too; v of each pixel, or of the data at hand, is what remains. The
    ``weight`` of a residual branch is a factor like the others.
    """

    v: Tensor
    scale: Tensor

    def __init__(self, norm: GramNorm, G_ii: Float[Tensor, "P P"], weight: float = 1.0) -> None:
        super().__init__()
        if norm.depends_on_batch:
            raise ValueError(
                "a model that normalises by the statistics of the batch at hand cannot be frozen: "
                "its predictions depend on the batch. Use NormChoice(statistics='running')."
            )
        is_constant = norm.running_mean is not None or norm.choice.data == "none"
        n_t = G_ii.new_ones(1) if norm.running_mean is None else norm.running_mean
        u, v = norm.factors(G_ii, n_t)
        self.is_folded = is_constant and v.numel() == 1
        self.columns = weight * u * v.reshape(1) if self.is_folded else weight * u
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

    def __init__(self, conv: KernelConv | None, filters: Tensor) -> None:
        super().__init__()
        if filters.ndim == 4:
            filters = filters.contiguous(memory_format=torch.channels_last)
        self.register_buffer("filters", filters)
        self.size, self.stride = (1, 1) if conv is None else (conv.filter_size, conv.stride)

    def forward(self, ti: Float[Tensor, "B *space P_in"], tt_diag: Tensor) -> Data:
        """Mix."""
        if self.filters.ndim == 2:
            return ti @ self.filters.mT, tt_diag
        mixed = convolve(ti, self.filters, self.stride)
        return mixed, mean_of_windows(tt_diag, self.size, self.stride)


class FrozenLayer(nn.Module):
    """(centring →) kernel → mixing to y → product to G_ti, with the sum over y² for g_tt."""

    spread: Tensor
    product: Tensor

    def __init__(
        self,
        kernel: Kernel,
        conv: KernelConv | None,
        gram: GramLayer,
        norm: GramNorm,
        G_ii: Float[Tensor, "P_in P_in"],
        conditional: Conditional,
        weight: float = 1.0,
        centre: FrozenCentre | None = None,
    ) -> None:
        super().__init__()
        self.centre = centre
        both = Diagonalised(conditional.kernel_factor, conditional.whitened_factor)
        self.kernel = freeze_kernel(kernel, G_ii)
        self.norm = FrozenNorm(norm, conditional.ii, weight)
        dtype = G_ii.dtype
        if conv is None:
            filters = both.whiten(torch.eye(len(both.d), dtype=torch.float64, device=G_ii.device))
        else:
            C = conv.mixing / conv.filter_size**2
            filters = both.whiten(C.flatten(1)).view_as(C)
        self.mixing = FrozenMixing(conv, filters.to(dtype))
        product = both.d[:, None] * both.T.mT * self.norm.columns
        self.clamp = gram.variance_check.clamp
        self.keeps = gram.unexplained == "kept"
        self.register_buffer("spread", (both.d - 1 if self.keeps else both.d).to(dtype))
        self.register_buffer("product", product.to(dtype))

    def forward(
        self, data: Data, skip: Data | None = None, skip_weight: float = 1.0
    ) -> tuple[Data, dict[str, Tensor]]:
        """The data through the layer, plus a weighted ``skip``, and its unchecked variances."""
        if self.centre is not None:
            data = self.centre(*data)
        y, k_tt = self.mixing(*self.kernel(*data))
        in_product = None if skip is None or not self.norm.is_folded else skip[0].flatten(0, -2)
        ti, more = condition_diagonal(
            y.flatten(0, -2), self.spread, self.product, in_product, skip_weight
        )
        variance = more.view_as(k_tt)
        if self.keeps:
            variance = k_tt + variance
        g_tt = variance.clamp_min(0.0) if self.clamp else variance
        ti, tt = self.norm(ti.view(*k_tt.shape, -1), g_tt)
        if skip is not None:
            tt = torch.add(tt, skip[1], alpha=skip_weight)
            ti = ti if in_product is not None else ti + skip_weight * skip[0]
        return (ti, tt), {"": variance}


class FrozenShortcut(nn.Module):
    """1×1 filters with the normalisation and the residual weight in them."""

    def __init__(
        self, conv: KernelConv, norm: GramNorm, mixed_ii: Float[Tensor, "P P"], weight: float
    ) -> None:
        super().__init__()
        self.norm = FrozenNorm(norm, mixed_ii, weight)
        C = conv.mixing / conv.filter_size**2
        self.mixing = FrozenMixing(conv, C * self.norm.columns.reshape(-1, 1, 1, 1))

    def forward(self, data: Data) -> Data:
        """The weighted shortcut."""
        out: Data = self.norm(*self.mixing(*data))
        return out


class FrozenBlock(nn.Module):
    """Two layers, and a skip: added in the second layer's product, or after a custom layer."""

    def __init__(
        self,
        layer1: nn.Module,
        layer2: nn.Module,
        shortcut: FrozenShortcut | None,
        weights: tuple[float, float],
    ) -> None:
        super().__init__()
        self.layer1 = layer1
        self.layer2 = layer2
        self.shortcut = shortcut
        w_s, self.weight = weights
        self.skip_weight = w_s if shortcut is None else 1.0  # a shortcut has it in its filters

    def forward(self, data: Data) -> tuple[Data, dict[str, Tensor]]:
        """Both branches, and the variances of both layers."""
        middle, first = self.layer1(data)
        skip = data if self.shortcut is None else self.shortcut(data)
        if isinstance(self.layer2, FrozenLayer):
            out, second = self.layer2(middle, skip, self.skip_weight)
        else:
            parts, second = self.layer2(middle)
            w_s, w_m = self.skip_weight, self.weight
            out = tuple(w_m * part + w_s * old for part, old in zip(parts, skip, strict=True))
        variances = {f".layer1{path}": variance for path, variance in first.items()}
        return out, variances | {f".layer2{path}": variance for path, variance in second.items()}


class FrozenState(nn.Module):
    """Any layer as it is, with its state worked out: the frozen form of a custom layer.

    The tensors of the state are buffers, so that they are saved and moved with the layer.
    """

    def __init__(self, layer: nn.Module, G_ii: Float[Tensor, "P P"], state: Any) -> None:
        super().__init__()
        self.layer = copied(layer)
        self.num_parts = 0
        self._form = _each_tensor((G_ii, state), self._keep)  # of tensors without values

    def forward(self, data: Data) -> tuple[Data, dict[str, Tensor]]:
        """The data half of the layer, which checks its variances itself."""
        parts = iter([self.get_buffer(f"part{number}") for number in range(self.num_parts)])
        ii, state = _each_tensor(self._form, lambda _: next(parts))
        gram, _ = self.layer.data(GramBlocks(ii, *data), state)  # type: ignore[operator]
        return (gram.ti, gram.tt_diag), {}

    def _keep(self, value: Tensor) -> Tensor:
        self.register_buffer(f"part{self.num_parts}", value.detach())
        self.num_parts += 1
        return value.to("meta")


class FrozenOutput(nn.Module):
    """kernel → y → mean and variance of the outputs."""

    filters: Tensor
    spread: Tensor
    means: Tensor

    def __init__(
        self,
        kernel: Kernel,
        norm: GramNorm,
        G_ii: Float[Tensor, "P P"],
        K_ii: Float[Tensor, "P P"],
        state: OutputState,
    ) -> None:
        super().__init__()
        both = Diagonalised(state.kernel_factor, state.whitened_factor)
        self.kernel = freeze_kernel(kernel, G_ii)
        self.norm = FrozenNorm(norm, K_ii)
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


def _each_tensor(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """A copy of dataclasses, namespaces, sequences and mappings with ``fn`` of each tensor."""
    if isinstance(value, Tensor):
        return fn(value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: getattr(value, part.name) for part in fields(value)}
        return replace(value, **{name: _each_tensor(part, fn) for name, part in parts.items()})
    if isinstance(value, SimpleNamespace):
        return SimpleNamespace(**_each_tensor(vars(value), fn))
    if isinstance(value, tuple | list):
        each = [_each_tensor(part, fn) for part in value]
        return value._make(each) if hasattr(value, "_make") else type(value)(each)
    if isinstance(value, Mapping):
        return {key: _each_tensor(part, fn) for key, part in value.items()}
    return value
