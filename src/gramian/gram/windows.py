"""Means over the pixels of a sliding window: the border rule of the published model."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d


def window_mean(
    values: Float[Tensor, "B H W"], size: int, stride: int = 1
) -> Float[Tensor, "B height width"]:
    """Mean of ``values`` over a size × size window, over the pixels INSIDE the image only.

    A window at a corner is divided by the number of its valid pixels, not by size². (The cross
    block G_ti is zero-padded and always divided by size²; DIFFERENCES 3.3 of the notes says why
    the joint matrix stays positive semi-definite.)
    """
    box = torch.ones(1, 1, size, size, dtype=values.dtype, device=values.device)
    total = conv2d(values[:, None], box, stride=stride, padding=size // 2)
    inside = torch.ones(1, 1, *values.shape[1:], dtype=values.dtype, device=values.device)
    count = conv2d(inside, box, stride=stride, padding=size // 2)
    return (total / count)[:, 0]
