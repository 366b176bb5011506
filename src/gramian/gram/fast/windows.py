"""Means over the pixels of a sliding window: the border rule of the published model."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import avg_pool2d, pad

FEW = 4096  # values, for which one slow operation is faster than several


def window_mean(
    values: Float[Tensor, "B H W"], size: int, stride: int = 1
) -> Float[Tensor, "B height width"]:
    """Mean of ``values`` over a size × size window, over the pixels INSIDE the image only.

    A window at a corner is divided by the number of its valid pixels, not by size². (The cross
    block G_ti is zero-padded and always divided by size²; docs/DIFFERENCES.md 3.3 says why
    the joint matrix stays positive semi-definite.)
    """
    mean: Tensor = _WindowMean.apply(values, size, stride)  # type: ignore[no-untyped-call]
    return mean


def mean_of_windows(
    values: Float[Tensor, "B H W"], size: int, stride: int
) -> Float[Tensor, "B height width"]:
    """What ``window_mean`` computes, for use without gradients.

    The mean over a rectangle is that of the means of its rows, so each axis has its turn, which on
    a CPU is much faster than PyTorch's pooling unless there are few values. Two small matrix
    products would do it too, but TF32 rounds the factors of a product, and g_tt has no digits to
    spare.
    """
    if torch.compiler.is_exporting() or values.is_cuda or values.numel() < FEW:
        return avg_pool2d(values[:, None], size, stride, size // 2, count_include_pad=False)[:, 0]
    for dim in (1, 2):
        values = _sums(values, dim, size, stride) * _one_over_count(values, dim, size, stride)
    return values


class _WindowMean(torch.autograd.Function):
    """``mean_of_windows`` with its gradient: each pixel gets from all windows that it is in."""

    @staticmethod
    def forward(ctx: FunctionCtx, values: Tensor, size: int, stride: int) -> Tensor:
        ctx.like, ctx.size, ctx.stride = values[:1], size, stride  # type: ignore[attr-defined]
        return mean_of_windows(values, size, stride)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        like, size, stride = ctx.like, ctx.size, ctx.stride  # type: ignore[attr-defined]
        for dim in (2, 1):
            gradient = gradient * _one_over_count(like, dim, size, stride)
            gradient = _spread(gradient, dim, size, stride, like.shape[dim])
        return gradient, None, None


def _sums(values: Tensor, dim: int, size: int, stride: int) -> Tensor:
    """Along one axis, the sum over each window's valid pixels."""
    padded = _padded(values, dim, size)
    first, *others = _shifted(padded, dim, size, stride)
    total = first.clone()
    for part in others:
        total += part
    return total


def _spread(gradient: Tensor, dim: int, size: int, stride: int, length: int) -> Tensor:
    """The transpose of ``_sums``."""
    shape = list(gradient.shape)
    shape[dim] = length + 2 * (size // 2)
    padded = gradient.new_zeros(shape)
    for part in _shifted(padded, dim, size, stride):
        part += gradient
    return padded.narrow(dim, size // 2, length)


def _shifted(padded: Tensor, dim: int, size: int, stride: int) -> list[Tensor]:
    """Views of the first pixel of every window, of the second, and so on."""
    end = padded.shape[dim] - size + 1
    picks = (slice(k, k + end, stride) for k in range(size))
    return [padded[(slice(None),) * dim + (pick,)] for pick in picks]


def _padded(values: Tensor, dim: int, size: int) -> Tensor:
    around = [0, 0] * (2 - dim) + [size // 2, size // 2]
    return pad(values, around)


def _one_over_count(values: Tensor, dim: int, size: int, stride: int) -> Tensor:
    """1 / the number of valid pixels of each window along one axis, to multiply by."""
    length = values.shape[dim]
    num_windows = (length + 2 * (size // 2) - size) // stride + 1
    first = torch.arange(num_windows, device=values.device) * stride - size // 2
    count = (first + size).clamp_max(length) - first.clamp_min(0)
    return count.to(values.dtype).reciprocal().view(-1, *[1] * (2 - dim))
