"""A custom layer: two layers of different kernels side by side, in one file outside the package.

    gramian train --model.layer custom_layer.SideBySide        (in this folder)

In Python: import this module, then ``ConvDKMConfig(layer="custom_layer.SideBySide")``.

    python examples/custom_layer.py         # handwritten digits, for a few epochs
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from gramian import DKMLayer, GramBlocks, Layer
from gramian.nn.contract import ByPath
from gramian.nn.dkm_config import DKMConfig
from gramian.nn.layers import LayerState, above, below


@dataclass(frozen=True)
class PairState:
    """What both layers work out from the inducing points alone."""

    first: LayerState
    second: LayerState
    ii: Tensor  # G_ii after the layer: every state has it


class SideBySide(Layer[PairState]):
    """G = ½ first(G) + ½ second(G): the Gram matrix of the features of both, stacked."""

    def __init__(self, first: DKMLayer, second: DKMLayer) -> None:
        super().__init__()
        self.first = first
        self.second = second

    @classmethod
    def build(
        cls, config: DKMConfig, P_in: int, P: int, space: tuple[int, ...], stride: int
    ) -> SideBySide:
        """One layer with the settings' kernel, and one with an arc-cosine kernel."""
        other = replace(config, kernel="arc_cosine")
        return cls(*(DKMLayer.build(c, P_in, P, space, stride) for c in (config, other)))

    def inducing(self, G_ii: Tensor, noise: ByPath) -> PairState:
        """The inducing block through both."""
        first = self.first.inducing(G_ii, below("first", noise))
        second = self.second.inducing(G_ii, below("second", noise))
        return PairState(first, second, 0.5 * (first.ii + second.ii))

    def data(self, gram: GramBlocks, state: PairState) -> tuple[GramBlocks, ByPath]:
        """The data blocks through both, and what was seen."""
        first, seen1 = self.first.data(gram, state.first)
        second, seen2 = self.second.data(gram, state.second)
        ti, tt_diag = 0.5 * (first.ti + second.ti), 0.5 * (first.tt_diag + second.tt_diag)
        return GramBlocks(state.ii, ti, tt_diag), {
            **above("first", seen1),
            **above("second", seen2),
        }

    def kl(self, state: PairState) -> dict[str, Tensor]:
        """Of both Gram layers."""
        first, second = self.first.kl(state.first), self.second.kl(state.second)
        return {**above("first", first), **above("second", second)}

    def start_(self, G_ii: Tensor, noise: ByPath) -> Tensor:
        """Start both learned matrices at their kernels."""
        self.first.start_(G_ii, below("first", noise))
        self.second.start_(G_ii, below("second", noise))
        return self.inducing(G_ii, noise).ii

    def output_space(self, space: tuple[int, ...]) -> tuple[int, ...]:
        """(H, W) after the layer."""
        return self.first.output_space(space)


def main() -> None:
    """Train on digits for a few epochs, and say how well it does."""
    from gramian.experiments.cli.main import main as program

    words = "train --data digits --max_epochs 5 --model.num_inducing [16,16] --plots false"
    program([*words.split(), "--model.layer", f"{__name__}.SideBySide"])


if __name__ == "__main__":
    main()
