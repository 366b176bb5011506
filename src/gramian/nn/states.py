"""What layers work out from the inducing points alone: drafts, then states with factorisations.

K_ii of a layer depends on the G̃_ii of the layers below it, and not on their factorisations. So all
layers make their drafts first, and then those of one size are factorised together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from gramian.gram.conditional import Conditional
from gramian.nn.steps.gram_layer import GramSample

T = TypeVar("T")

Samples = Mapping[str, GramSample]
"""G̃_ii of each Gram layer, by module path."""

ByPath = Mapping[str, Tensor]
"""Tensors by module path: noise and KL of a Gram layer, mean of a norm, clamps of a layer."""


Conditioned = Mapping[str, tuple[Conditional, Tensor]]
"""The conditional and the KL of each Gram layer, by module path."""


@dataclass(frozen=True, slots=True)
class LayerDraft:
    """What a layer has worked out from the inducing points alone, but for the factorisation."""

    phi_ii: Float[Tensor, "P_in P_in"]  # after the kernel
    K_ii: Float[Tensor, "P P"]  # after the convolution
    sample: GramSample  # G̃_ii
    ii: Float[Tensor, "P P"]  # after the normalisation: what the next layer meets

    def kernels(self) -> dict[str, tuple[Tensor, GramSample]]:
        """K_ii and G̃_ii of each Gram layer, by path."""
        return {"gram": (self.K_ii, self.sample)}

    def complete(self, conditioned: Conditioned) -> LayerState:
        """With the factorisation."""
        conditional, kl = conditioned["gram"]
        return LayerState(self.phi_ii, self.K_ii, conditional, self.ii, {"gram": kl})


@dataclass(frozen=True, slots=True)
class LayerState:
    """All that a layer has worked out from the inducing points alone."""

    phi_ii: Float[Tensor, "P_in P_in"]
    K_ii: Float[Tensor, "P P"]
    conditional: Conditional  # on G̃_ii
    ii: Float[Tensor, "P P"]
    kl: ByPath


@dataclass(frozen=True, slots=True)
class BlockDraft:
    """What a residual block has worked out from the inducing points, but for the factorisations."""

    first: LayerDraft
    second: LayerDraft
    shortcut: tuple[Tensor, Tensor] | None
    ii: Float[Tensor, "P P"]

    def kernels(self) -> dict[str, tuple[Tensor, GramSample]]:
        """K_ii and G̃_ii of each Gram layer, by path."""
        return {
            **above("layer1", self.first.kernels()),
            **above("layer2", self.second.kernels()),
        }

    def complete(self, conditioned: Conditioned) -> BlockState:
        """With the factorisations."""
        first = self.first.complete(below("layer1", conditioned))
        second = self.second.complete(below("layer2", conditioned))
        kl = {**above("layer1", first.kl), **above("layer2", second.kl)}
        return BlockState(first, second, self.shortcut, self.ii, kl)


@dataclass(frozen=True, slots=True)
class BlockState:
    """All that a residual block has worked out from the inducing points alone."""

    first: LayerState
    second: LayerState
    shortcut: tuple[Tensor, Tensor] | None
    ii: Float[Tensor, "P P"]
    kl: ByPath


def above(name: str, inner: Mapping[str, T]) -> dict[str, T]:
    """Put ``name.`` in front of each path."""
    return {f"{name}.{path}": value for path, value in inner.items()}


def below(name: str, outer: Mapping[str, T]) -> dict[str, T]:
    """The entries whose paths start with ``name.``, without it."""
    start = f"{name}."
    return {p.removeprefix(start): value for p, value in outer.items() if p.startswith(start)}
