"""The network baseline with the interface of a deep kernel machine, for the same trainer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import Marginals
from gramian.nn.baseline.resnet import ResNet
from gramian.nn.contract import ByPath, DKMResult, Trainable
from gramian.nn.likelihoods import LikelihoodConfig, build_likelihood, check_likelihood
from gramian.nn.setting_checks import (
    MOST_LAYERS,
    check_at_most,
    check_choices,
    check_positive,
    check_ranges,
)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(LikelihoodConfig):
    """The pre-activation ResNet beside which the paper puts its deep kernel machine.

    Args (besides those of LikelihoodConfig):
        image_shape: (channels, height, width).
        widths: channels of each stage.
        blocks_per_stage: residual blocks in a stage, two convolutions each.
        strides: stride of the first block of each stage.
        stem_stride: stride of the first convolution.

    Example:
        >>> import torch
        >>> from gramian import Network, NetworkConfig
        >>> with torch.device("meta"):  # the paper's size, without its memory
        ...     network = Network(NetworkConfig())
        >>> sum(weights.numel() for weights in network.parameters())
        276636170
    """

    image_shape: tuple[int, int, int] = (3, 32, 32)
    num_samples: int = 1
    widths: tuple[int, ...] = (512, 1024, 2048)
    blocks_per_stage: int = 3
    strides: tuple[int, ...] = (2, 2, 2)
    stem_stride: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        check_choices(self)
        check_ranges(vars(self))
        check_positive(blocks_per_stage=self.blocks_per_stage)
        check_at_most(MOST_LAYERS // 2 // len(self.widths), blocks_per_stage=self.blocks_per_stage)
        if len(self.strides) != len(self.widths):
            raise ValueError(
                f"one stride per stage: {len(self.widths)} stages in widths, "
                f"but strides = {self.strides}"
            )
        check_likelihood(self)

    @property
    def has_single_pixels(self) -> bool:
        """Whether the maps of the last stage are 1×1."""
        stride = math.prod((self.stem_stride, *self.strides))
        return max(self.image_shape[1:]) <= stride


class Network(Trainable):
    """A ResNet whose logits are marginals of variance 0, so that there is no KL.

        E_q[log softmax(f)_y] = log softmax(mean)_y, the usual cross-entropy

    Images [B, channels, H, W] → ``DKMResult`` with logits [B, C].

    Args:
        config: sizes.

    Example:
        >>> import torch
        >>> from gramian import Network, NetworkConfig
        >>> images, draw = torch.zeros(4, 1, 8, 8), torch.Generator().manual_seed(0)
        >>> network = Network(NetworkConfig(image_shape=(1, 8, 8), widths=(8,), strides=(2,)))
        >>> network.initialise_(images, draw)
        >>> result = network(images)
        >>> result.marginals.mean.shape, float(result.marginals.var.max()), float(result.total_kl)
        (torch.Size([4, 10]), 0.0, 0.0)
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config.image_shape, config.num_outputs, build_likelihood(config))
        self.config = config
        network = ResNet(
            config.image_shape,
            config.num_outputs,
            config.widths,
            config.blocks_per_stage,
            config.strides,
            config.stem_stride,
        )
        self.network: ResNet = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor, noise: ByPath | None = None) -> DKMResult:
        """Logits as marginals."""
        self.check_initialised()
        self.check_data(x)
        logits = self.network(x.contiguous(memory_format=torch.channels_last))
        return DKMResult(Marginals(logits, logits.new_zeros(len(logits), 1)), {}, {})

    @torch.no_grad()
    def initialise_(
        self,
        x: Tensor,
        generator: torch.Generator,
        *,
        weights: Float[Tensor, " N"] | None = None,
    ) -> None:
        """Draw all weights as PyTorch does by default: uniform within ±1/√(inputs)."""
        self.check_data(x)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                bound = 1 / math.sqrt(module.weight[0].numel())
                module.weight.copy_(uniforms(module.weight, bound, generator))
                if module.bias is not None:
                    module.bias.copy_(uniforms(module.bias, bound, generator))
        for norm in self._norms():
            norm.reset_parameters()
        self.initialised.fill_(True)

    @torch.no_grad()
    def estimate_statistics_(self, batches: Iterable[Tensor]) -> None:
        """Set the running means and variances to those of the data of ``batches`` together.

        A normalisation meets what those before it have normalised by the means of a batch.
        """
        was_training, norms, count = self.training, self._norms(), 0
        momenta = [norm.momentum for norm in norms]

        def add(norm: nn.BatchNorm2d, args: tuple[Tensor]) -> None:
            assert norm.running_mean is not None
            assert norm.running_var is not None
            share = len(args[0]) / count
            var, mean = torch.var_mean(args[0], (0, 2, 3), correction=0)
            step = mean - norm.running_mean
            norm.running_var.lerp_(var, share).add_(share * (1 - share) * step.square())
            norm.running_mean.add_(share * step)

        hooks = [norm.register_forward_pre_hook(add) for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = 0.0  # a forward pass moves nothing
        self.train()
        try:
            for x in batches:
                count += len(x)
                self.network(x.contiguous(memory_format=torch.channels_last))
        finally:
            self.train(was_training)
            for norm, momentum, hook in zip(norms, momenta, hooks, strict=True):
                norm.momentum = momentum
                hook.remove()

    def running_statistics(self) -> list[Tensor]:
        """Running means, variances and counts."""
        return [buffer for norm in self._norms() for buffer in norm.buffers()]

    def _norms(self) -> list[nn.BatchNorm2d]:
        return [module for module in self.modules() if isinstance(module, nn.BatchNorm2d)]


def uniforms(like: Tensor, bound: float, generator: torch.Generator) -> Tensor:
    """Uniform numbers within ± ``bound``, as many as ``like`` has, on the generator's device."""
    drawn = torch.empty(like.shape, dtype=like.dtype, device=generator.device)
    return drawn.uniform_(-bound, bound, generator=generator)
