"""What a model works out before it meets data, and what it says about a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gramian.gram.blocks import Marginals
from gramian.nn.output import OutputState
from gramian.nn.pooling import PooledState


@dataclass(frozen=True, slots=True)
class InducingChain:
    """All that a model works out from its parameters and noise alone, before it meets data."""

    input_ii: Tensor
    layers: dict[str, Any]  # the state of each layer, a LayerState or a BlockState
    pooled: PooledState
    K_ii: Tensor
    top_ii: Tensor
    output: OutputState
    kl: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class DKMResult:
    """What a model says about a batch.

    Attributes:
        marginals: q(f) of each data point.
        kl: KL of each Gram layer (times ν) and of the output, by module path.
        seen: mean of each normalisation and number of clamped variances of each Gram layer, by
            module path.
    """

    marginals: Marginals
    kl: dict[str, Tensor]
    seen: dict[str, Tensor]

    @property
    def total_kl(self) -> Float[Tensor, ""]:
        """Sum of all KL terms; 0 if there is none."""
        if not self.kl:
            return self.marginals.mean.new_zeros(())
        return torch.stack(list(self.kl.values())).sum()
