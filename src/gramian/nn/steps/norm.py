"""Batch kernel normalisation: Gram blocks of features divided by their root mean square."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import GramBlocks
from gramian.nn.setting_checks import check_choices

BatchMean = Callable[[Tensor, tuple[int, ...]], Tensor]


@dataclass(frozen=True)
class NormChoice:
    """What is averaged, what is learned, and what evaluation uses.

        ii → u uᵀ ∘ G_ii,  ti → v uᵀ ∘ G_ti,  tt → v² g_tt,  with u = s_i/√n_i and v = s_t/√n_t

    Args:
        inducing: n_i = 1 (none), mean diag G_ii (global) or diag G_ii (local).
        data: n_t = 1 (none), mean of g_tt over batch and pixels (global), over the batch for each
            pixel (location), over the pixels of each image (image), or g_tt itself (local).
        scale_inducing: learned scale of the inducing features: none, one, or one per point (local).
        scale_data: learned scale of the data features: none, one, or one per pixel (location).
        statistics: what stands for means over the batch in evaluation: their running average from
            training, so that an image's prediction does not depend on its batch, or the means of
            the batch at hand, as published.
        momentum: weight of the newest batch in the running average.

    Example:
        >>> from gramian import DenseDKM, DenseDKMConfig, NormChoice
        >>> config = DenseDKMConfig(norm=NormChoice(statistics="batch"))
        >>> DenseDKM.from_config(config).can_freeze  # a prediction depends on its batch
        False
        >>> DenseDKMConfig().norm == NormChoice.off()
        True
    """

    inducing: Literal["none", "global", "local"] = "global"
    data: Literal["none", "global", "local", "location", "image"] = "global"
    scale_inducing: Literal["none", "global", "local"] = "global"
    scale_data: Literal["none", "global", "location"] = "global"
    statistics: Literal["running", "batch"] = "running"
    momentum: float = 0.1

    def __post_init__(self) -> None:
        """Refuse what is no choice."""
        check_choices(self)

    @classmethod
    def off(cls) -> NormChoice:
        """No normalisation and no scales."""
        return cls(inducing="none", data="none", scale_inducing="none", scale_data="none")


class GramNorm(nn.Module):
    """ii → u uᵀ ∘ G_ii, ti → v uᵀ ∘ G_ti, tt → v² g_tt, with u = s_i/√n_i and v = s_t/√n_t.

    Gradients flow through the means. A forward pass changes no buffer: ``update_`` does. Where a
    batch is spread over processes, ``batch_mean`` is set to a function that averages over them.

    Args:
        num_inducing: P, for a scale of each inducing point.
        space: (H, W), for means and scales of each pixel; () for dense data.
        choice: which means and scales.
    """

    running_mean: Tensor | None
    log_scale_inducing: nn.Parameter | None
    log_scale_data: nn.Parameter | None

    def __init__(
        self, num_inducing: int, space: tuple[int, ...] = (), choice: NormChoice = NormChoice()
    ) -> None:
        super().__init__()
        if not space and "location" in (choice.data, choice.scale_data):
            raise ValueError("normalisation by location needs pixels, but the data are dense")
        self.choice = choice
        self.batch_mean: BatchMean = mean_over_batch
        shapes = {"none": None, "global": (1,), "local": (num_inducing,), "location": (1, *space)}
        self.log_scale_inducing = _zeros(shapes[choice.scale_inducing])
        self.log_scale_data = _zeros(shapes[choice.scale_data])
        means = {"global": (1,), "location": (1, *space)}
        running_mean = torch.ones(means[choice.data]) if choice.data in means else None
        self.register_buffer("running_mean", running_mean)

    @property
    def depends_on_batch(self) -> bool:
        """Whether, in evaluation too, n_t is a mean over the batch at hand."""
        return self.running_mean is not None and self.choice.statistics == "batch"

    def inducing(self, G_ii: Float[Tensor, "Pi Pi"]) -> Float[Tensor, "Pi Pi"]:
        """Normalise the inducing block."""
        u = self._inducing_factor(G_ii)
        return u[:, None] * G_ii * u

    def data_mean(self, tt_diag: Float[Tensor, "B *space"]) -> Float[Tensor, "..."]:
        """n_t: of this batch in training; what ``statistics`` says in evaluation."""
        is_running = not self.training and self.choice.statistics == "running"
        if self.running_mean is not None and is_running:
            return self.running_mean
        match self.choice.data:
            case "none":
                return tt_diag.new_ones(1)
            case "global":
                return self.batch_mean(tt_diag, tuple(range(tt_diag.ndim))).reshape(1)
            case "local":
                return tt_diag
            case "location":
                return self.batch_mean(tt_diag, (0,))
            case "image":
                pixels = tuple(range(1, tt_diag.ndim))
                return tt_diag.mean(pixels, keepdim=True) if pixels else tt_diag
            case _:
                assert_never(self.choice.data)

    def data(
        self, gram: GramBlocks, ii: Float[Tensor, "Pi Pi"], n_t: Float[Tensor, "..."]
    ) -> GramBlocks:
        """Normalise the data blocks by n_t; ``ii`` is the block that is already normalised."""
        u, v = self.factors(gram.ii, n_t)
        return GramBlocks(ii, v[..., None] * u * gram.ti, v.square() * gram.tt_diag)

    def factors(
        self, G_ii: Float[Tensor, "Pi Pi"], n_t: Float[Tensor, "..."]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, "..."]]:
        """u, one or one per inducing point, and v, one or one per data point, pixel or image."""
        v = n_t.rsqrt()
        if self.log_scale_data is not None:
            v = v * self.log_scale_data.exp()
        return self._inducing_factor(G_ii), v

    def forward(self, gram: GramBlocks) -> GramBlocks:
        """Normalise all blocks."""
        return self.data(gram, self.inducing(gram.ii), self.data_mean(gram.tt_diag))

    @torch.no_grad()
    def update_(self, n_t: Float[Tensor, "..."], momentum: float | None = None) -> None:
        """Move the running mean towards n_t, by ``choice.momentum`` unless told otherwise."""
        if self.running_mean is not None:
            weight = self.choice.momentum if momentum is None else momentum
            self.running_mean.lerp_(n_t, weight)

    def _inducing_factor(self, G_ii: Float[Tensor, "Pi Pi"]) -> Float[Tensor, " n"]:
        """u = s_i / √n_i."""
        g_ii = G_ii.diagonal()
        match self.choice.inducing:
            case "none":
                n_i = g_ii.new_ones(1)
            case "global":
                n_i = g_ii.mean().reshape(1)
            case "local":
                n_i = g_ii
            case _:
                assert_never(self.choice.inducing)
        u = n_i.rsqrt()
        return u if self.log_scale_inducing is None else u * self.log_scale_inducing.exp()

    def extra_repr(self) -> str:
        """Settings, for ``print``."""
        return f"{self.choice}"


def mean_over_batch(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Mean of the values of this process."""
    return values.mean(dims, keepdim=True)


def _zeros(shape: tuple[int, ...] | None) -> nn.Parameter | None:
    return None if shape is None else nn.Parameter(torch.zeros(shape))
