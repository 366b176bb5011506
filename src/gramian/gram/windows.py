"""Means over the pixels of a sliding window: the border rule of the published model."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def window_mean(
    values: Float[Tensor, "B H W"], size: int, stride: int = 1
) -> Float[Tensor, "B height width"]:
    """Mean of ``values`` over a size × size window, over the pixels INSIDE the image only.

    A window at a corner is divided by the number of its valid pixels, not by size². (The cross
    block G_ti is zero-padded and always divided by size²; DIFFERENCES 3.3 of the notes says why
    the joint matrix stays positive semi-definite.) The mean over a rectangle is that of the means
    of its rows, so two small products do it: M_H · values · M_Wᵀ.
    """
    M_H, M_W = (mean_matrix(length, size, stride, values) for length in values.shape[1:])
    return M_H @ (values @ M_W.mT)


def mean_matrix(
    length: int, size: int, stride: int, like: Tensor
) -> Float[Tensor, "windows length"]:
    """Row w averages the valid pixels of window w along one axis."""
    num_windows = (length + 2 * (size // 2) - size) // stride + 1
    first = torch.arange(num_windows, device=like.device)[:, None] * stride - size // 2
    pixel = torch.arange(length, device=like.device)
    inside = ((first <= pixel) & (pixel < first + size)).to(like.dtype)
    return inside / inside.sum(1, keepdim=True)
