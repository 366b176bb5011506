"""Settings that all deep kernel machines share, and the parts built from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from gramian.gram.conditional import VarianceCheck
from gramian.gram.divergence import Divergence
from gramian.gram.skr import SKR
from gramian.nn.layers import LAYERS, Layer
from gramian.nn.likelihoods import LikelihoodConfig, check_likelihood
from gramian.nn.named import find
from gramian.nn.setting_checks import check_choices, check_positive, check_ranges
from gramian.nn.steps.conv import KernelConv
from gramian.nn.steps.gram_layer import GramLayer, Unexplained
from gramian.nn.steps.kernels import KERNELS, Bandwidth, Jitter, Kernel
from gramian.nn.steps.norm import GramNorm, NormChoice
from gramian.nn.steps.output import GPOutput, OutputStart


@dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """The kernels of a model, each with parameters of its own.

    Args:
        kernel: a name in ``KERNELS`` such as squared_exponential, or module.Class of a custom one.
        weight_var: start value of each kernel's learned weight variance; null fixes it at 1.
        bias_var: start value of each kernel's learned bias variance; null leaves it out.
        kernel_jitter: inflation of the kernels' diagonals.
        bandwidth: how fast the kernels of the layers fall off; fixed at 1 as published, or learned.
    """

    kernel: str = "normalized_gaussian"
    weight_var: float | None = 1.0
    bias_var: float | None = 0.1
    kernel_jitter: Jitter = Jitter()
    bandwidth: Bandwidth = Bandwidth()

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        check_choices(self)
        self.check_bandwidth(self.bandwidth)
        check_positive(weight_var=self.weight_var, bias_var=self.bias_var)

    @classmethod
    def known_kernels(cls) -> dict[str, type[Kernel]]:
        """What ``kernel`` may name."""
        return KERNELS

    def kernel_class(self) -> type[Kernel]:
        """The class that ``kernel`` names."""
        return find("kernel", self.kernel, self.known_kernels(), Kernel)

    def check_bandwidth(self, bandwidth: Bandwidth) -> None:
        """Refuse one for a kernel that has none."""
        known = self.kernel_class()
        if bandwidth != Bandwidth() and not known.has_bandwidth:
            raise ValueError(f"the kernel {self.kernel} has no bandwidth: leave it at 1, fixed")

    def build_kernel(self, bandwidth: Bandwidth | None = None) -> Kernel:
        """A kernel with parameters of its own; with another bandwidth than that of the layers."""
        parts = (self.weight_var, self.bias_var, self.kernel_jitter)
        if self.kernel_class().has_bandwidth:
            return self.kernel_class()(*parts, bandwidth or self.bandwidth)
        return self.kernel_class()(*parts)


@dataclass(frozen=True, kw_only=True)
class DKMConfig(LikelihoodConfig, KernelConfig):  # in this order jsonargparse finds all types
    """What the layers of a model have in common.

    Args (besides those of KernelConfig and LikelihoodConfig):
        layer: what a layer is: ``dkm``, or module.Class of a custom one (see ``Layer``).
        nu: ν, the pull of the Gram matrices towards the kernel. Infinity, with ``SKR.off()``, is
            the NNGP.
        divergence: KL of the Gram layers and of the output: exact, or its Taylor expansion.
        skr: stochastic kernel regularisation.
        norm: normalisation after each layer and before the output.
        tempered: average the output's KL over the outputs instead of summing it.
        output_start: where q of the output starts: random, kernel or prior (see ``GPOutput``).
        variance_check: what to do about negative variances.
        unexplained: the variance of the data that a layer's inducing points do not explain: kept,
            as published, or dropped: with few inducing points the model then learns faster.
        output_bandwidth: of the output's kernel. The smaller, the more of the outputs the inducing
            points explain.
        centre: before the kernel of each layer take a learned point from the features, as the mean
            of a network's batch normalisation is taken. Not in the paper.
    """

    layer: str = "dkm"
    nu: float = 0.001
    divergence: Divergence = "taylor"
    skr: SKR = SKR()
    norm: NormChoice = NormChoice()
    tempered: bool = True
    output_start: OutputStart = "random"
    variance_check: VarianceCheck = VarianceCheck()
    unexplained: Unexplained = "kept"
    output_bandwidth: Bandwidth = Bandwidth()
    centre: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        super().__post_init__()
        find("layer", self.layer, LAYERS, Layer)
        check_likelihood(self)
        check_ranges(vars(self))
        self.check_bandwidth(self.output_bandwidth)
        if not 0 < self.norm.momentum <= 1:
            raise ValueError(f"norm.momentum must be in (0, 1], got {self.norm.momentum}")
        if not math.isfinite(self.variance_check.threshold):
            raise ValueError(
                f"variance_check.threshold must be finite, got {self.variance_check.threshold}"
            )

    def build_layer(self, P_in: int, P: int, space: tuple[int, ...], stride: int) -> Layer[Any]:
        """One layer; ``space`` is the size of its output map."""
        return find("layer", self.layer, LAYERS, Layer).build(self, P_in, P, space, stride)

    def build_conv(self, P_in: int, P: int, filter_size: int, stride: int) -> KernelConv:
        """A kernel convolution."""
        return KernelConv(P_in, P, filter_size, stride)

    def build_gram(self, num_inducing: int) -> GramLayer:
        """A Gram layer."""
        check, unexplained = self.variance_check, self.unexplained
        return GramLayer(num_inducing, self.nu, self.divergence, self.skr, check, unexplained)

    def build_norm(self, num_inducing: int, space: tuple[int, ...]) -> GramNorm:
        """A normalisation; where there are no pixels, ``location`` means the whole batch."""
        choice = self.norm
        if not space and choice.data == "location":
            choice = replace(choice, data="global")
        if not space and choice.scale_data == "location":
            choice = replace(choice, scale_data="global")
        return GramNorm(num_inducing, space, choice)

    def build_output(self, num_inducing: int) -> GPOutput:
        """The output layer."""
        return GPOutput(
            num_inducing,
            self.num_outputs,
            self.divergence,
            self.tempered,
            self.variance_check,
            self.output_start,
        )
