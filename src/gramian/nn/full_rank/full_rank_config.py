"""Settings of a model without inducing points, and the data that it can be trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from torch import Tensor

from gramian.gram.conditional import VarianceCheck
from gramian.gram.divergence import Divergence
from gramian.gram.full_blocks import PairConvolution
from gramian.gram.skr import SKR
from gramian.nn.checks import check_features, check_labels
from gramian.nn.dkm_config import KernelConfig
from gramian.nn.likelihoods import Categorical, Estimator, Gaussian, Likelihood
from gramian.nn.setting_checks import check_ranges
from gramian.nn.steps.gram_layer import GramLayer
from gramian.nn.steps.inputs import Lengthscales
from gramian.nn.steps.kernels import KERNELS, Kernel, Linear
from gramian.nn.steps.output import GPOutput, RelativeOutput

FullRankLikelihood = Literal["gaussian", "categorical", "dirichlet"]


@dataclass(frozen=True, kw_only=True)
class FullRankConfig(KernelConfig):
    """A deep kernel machine without inducing points (Eqs. dkm_obfr and cdkm_fr_ob).

    The kernel may also be ``linear``. Each new point has a jitter of its own, also one that is a
    copy of a training point.

    Args (besides those of KernelConfig):
        num_layers: Gram layers. None at all is a Gaussian process with this kernel.
        nu: ν, the pull of the Gram matrices towards the kernel. Infinity is the NNGP.
        divergence: of the Gram layers, and of the categorical output.
        relative: learn each G, and q of classes, in coordinates of the kernel that it meets (see
            ``FullRankLayer``), which a search wants; otherwise as the inducing-point models do.
        lengthscales: learned scales of the features (channels of images): none, one, or one each.
        likelihood: ``gaussian`` with the output in closed form; for classes, ``categorical`` by
            variational inference, or ``dirichlet``, a regression in closed form.
        num_classes: C of a classification; None for the largest label plus 1.
        alpha: of the Dirichlet distributions, which have 1 + α for the label and α elsewhere.
        noise_var: start value of the Gaussian likelihood's variance σ².
        shared_noise: learn one σ² for all targets, and not one for each. They then share the large
            factorisation, too.
        num_samples: Monte-Carlo samples of a softmax.
        estimator: of the categorical expected log-likelihood.
        filter_size: f of the convolutions, odd. Images only.
        strides: of the convolutions, one per layer; () for 1 in all layers. Images only.
        variance_check: what to do about negative variances.

    Example:
        >>> import numpy as np
        >>> from gramian import FullRankConfig, fit
        >>> x = np.linspace(-1, 1, 20)[:, None]
        >>> config = FullRankConfig(kernel="squared_exponential", nu=10.0)
        >>> predictor = fit(config, x, np.sin(3 * x), max_iter=50)
        >>> round(predictor.predictions(np.array([[0.5]]))["mean"].item(), 2)  # sin 1.5 = 0.997
        1.0
    """

    num_layers: int = 1
    nu: float = 1.0
    divergence: Divergence = "exact"
    relative: bool = True
    lengthscales: Lengthscales = "none"
    likelihood: FullRankLikelihood = "gaussian"
    num_classes: int | None = None
    alpha: float = 0.01
    noise_var: float = 0.1
    shared_noise: bool = False
    num_samples: int = 1000
    estimator: Estimator = "exact"
    filter_size: int = 3
    strides: tuple[int, ...] = ()
    variance_check: VarianceCheck = VarianceCheck()

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        super().__post_init__()
        check_ranges({name: getattr(self, name) for name in ("nu", "num_layers", "num_samples")})
        if self.num_classes is not None and self.num_classes < 2:
            raise ValueError(f"num_classes must be 2 or more, or None, got {self.num_classes}")
        for name in ("noise_var", "alpha"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.filter_size < 1 or self.filter_size % 2 == 0:
            raise ValueError(f"filter_size must be odd, to have a centre, got {self.filter_size}")
        if self.strides and (len(self.strides) != self.num_layers or min(self.strides) < 1):
            raise ValueError(
                f"strides must be () or one positive number for each of {self.num_layers} layers, "
                f"got {self.strides}"
            )

    @classmethod
    def known_kernels(cls) -> dict[str, type[Kernel]]:
        """What ``kernel`` may name."""
        return {**KERNELS, "linear": Linear}

    def build_gram(self, num_points: int) -> GramLayer:
        """A Gram layer over all training points, without noise."""
        return GramLayer(num_points, self.nu, self.divergence, SKR.off(), self.variance_check)

    def build_likelihood(self, num_outputs: int) -> Likelihood:
        """The likelihood."""
        match self.likelihood:
            case "gaussian":
                return Gaussian(
                    num_outputs, noise_var=self.noise_var, shared_noise=self.shared_noise
                )
            case "categorical" | "dirichlet":
                return Categorical(num_outputs, self.num_samples, self.estimator)
            case _:
                assert_never(self.likelihood)

    def build_output(self, num_data: int, num_outputs: int) -> GPOutput:
        """The output of a categorical model: q(f_c) = N(μ_c, A), its KL summed over the classes."""
        return (RelativeOutput if self.relative else GPOutput)(
            num_data,
            num_outputs,
            self.divergence,
            tempered=False,
            variance_check=self.variance_check,
            start="prior",
        )

    def convolutions(self, space: tuple[int, int] | None) -> list[PairConvolution | None]:
        """Γ of each layer for images of (H, W) pixels; None for rows, which have none."""
        if space is None:
            return [None] * self.num_layers
        convolutions: list[PairConvolution | None] = []
        for stride in self.strides or (1,) * self.num_layers:
            convolution = PairConvolution(space, self.filter_size, stride)
            convolutions.append(convolution)
            space = convolution.output_space
        return convolutions


def check_training_data(x: object, y: object, axes: tuple[str, ...], config: FullRankConfig) -> int:
    """Raise unless x and y are training data for these settings; return C."""
    dtype = x.dtype if isinstance(x, Tensor) and x.is_floating_point() else torch.float64
    check_features(x, axes, dtype, axes[0])
    assert isinstance(x, Tensor)
    if config.strides and len(axes) == 2:
        raise ValueError(f"strides are for images; rows have no pixels, got {config.strides}")
    if config.likelihood == "gaussian":
        wide = y.dtype if isinstance(y, Tensor) and y.is_floating_point() else dtype
        check_features(y, (len(x), "outputs"), wide, "targets")
        assert isinstance(y, Tensor)
        return y.shape[1]
    if not isinstance(y, Tensor):
        raise TypeError(f"labels must be a torch tensor, got {type(y).__name__}")
    C = config.num_classes or (int(y.max()) + 1 if y.numel() else 1)
    check_labels(y, C, len(x))
    if y.min() == y.max():
        raise ValueError(
            f"labels must be of 2 classes or more, got {len(y)} times class {int(y.max())}"
        )
    return C


def num_pixels(space: tuple[int, int] | None) -> int:
    """S = H·W; 1 for rows."""
    return 1 if space is None else space[0] * space[1]
