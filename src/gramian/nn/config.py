"""Settings that all deep kernel machines share, and the parts built from them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gramian.gram.conditional import VarianceCheck
from gramian.gram.divergence import Divergence
from gramian.gram.skr import SKR
from gramian.nn.gram_layer import GramLayer
from gramian.nn.kernel_config import KernelConfig
from gramian.nn.likelihoods import Estimator
from gramian.nn.norm import GramNorm, NormChoice
from gramian.nn.output import GPOutput, OutputStart


@dataclass(frozen=True, kw_only=True)
class DKMConfig(KernelConfig):
    """What the layers of a model have in common.

    Args (besides those of KernelConfig):
        nu: ν, the pull of the Gram matrices towards the kernel. Infinity, with ``SKR.off()``, is
            the NNGP.
        divergence: of the Gram layers and of the output.
        skr: stochastic kernel regularisation.
        norm: normalisation after each layer and before the output.
        tempered: average the output's KL over the outputs instead of summing it.
        num_samples: Monte-Carlo samples of the likelihood.
        estimator: of the expected log-likelihood.
        output_start: where the output's covariance starts.
        variance_check: what to do about negative variances.
    """

    nu: float = 0.001
    divergence: Divergence = "taylor"
    skr: SKR = SKR()
    norm: NormChoice = NormChoice()
    tempered: bool = True
    num_samples: int = 1000
    estimator: Estimator = "exact"
    output_start: OutputStart = "random"
    variance_check: VarianceCheck = VarianceCheck()

    def build_gram(self, num_inducing: int) -> GramLayer:
        """A Gram layer."""
        return GramLayer(num_inducing, self.nu, self.divergence, self.skr, self.variance_check)

    def build_norm(self, num_inducing: int, space: tuple[int, ...]) -> GramNorm:
        """A normalisation; where there are no pixels, ``location`` means the whole batch."""
        choice = self.norm
        if not space and choice.data == "location":
            choice = replace(choice, data="global")
        if not space and choice.scale_data == "location":
            choice = replace(choice, scale_data="global")
        return GramNorm(num_inducing, space, choice)

    def build_output(self, num_inducing: int, num_outputs: int) -> GPOutput:
        """The output layer."""
        return GPOutput(
            num_inducing,
            num_outputs,
            self.divergence,
            self.tempered,
            self.variance_check,
            self.output_start,
        )
