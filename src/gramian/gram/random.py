"""Random numbers on the generator's own device, whatever the device of what they are for.

A generator can draw only where it is. So everything random is drawn there and then moved, and one
generator, on any device, serves a model on any other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


def normals(
    shape: Sequence[int], generator: torch.Generator, dtype: torch.dtype
) -> Float[Tensor, "..."]:
    """Standard normals."""
    return torch.randn(*shape, generator=generator, dtype=dtype, device=generator.device)


def permutation(
    size: int, generator: torch.Generator, weights: Float[Tensor, " size"] | None = None
) -> Int[Tensor, " size"]:
    """0 … size − 1 in a random order; what has weight 2 comes as early as the first of two.

    Equal weights are as none.
    """
    device = generator.device
    if weights is None or weights.min() == weights.max():
        return torch.randperm(size, generator=generator, device=device)
    waits = torch.empty(size, device=device).exponential_(generator=generator)
    return (waits / weights.to(waits)).argsort()
