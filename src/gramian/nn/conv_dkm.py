"""The convolutional deep kernel machine of the paper: a ResNet-20 of Gram matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from gramian.nn.dkm_config import DKMConfig
from gramian.nn.layers import Layer, ResidualBlock, Shortcut
from gramian.nn.likelihoods import build_likelihood
from gramian.nn.model import DKM
from gramian.nn.setting_checks import MOST_LAYERS, check_at_most
from gramian.nn.steps.conv import KernelConv, MixingStart
from gramian.nn.steps.inputs import InducingStart, PatchInput
from gramian.nn.steps.pooling import NystromMean, Pooling, SpatialMean
from gramian.nn.steps.whitening import Whitening, build_whitening

Space = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ConvDKMConfig(DKMConfig):
    """A convolutional DKM. The defaults are the paper's CIFAR-10 model, as it was run.

    Args (besides those of DKMConfig):
        image_shape: (channels, height, width).
        num_inducing: inducing points of each stage; the stem has those of the first.
        blocks_per_stage: residual blocks in a stage, two layers each.
        strides: stride of the first block of each stage.
        stem_stride: stride of the stem; 2 ends the costly full-size maps after the first kernel.
        residual_weights: weights of the shortcut and of the main branch, ½ and ½ as published; or
            mean: k/(k + 1) and 1/(k + 1) in the k-th block, so that G is the mean of all branches
            and of the stem, and depth does not bury what the first layers have found.
        pooling: ``mean`` of the diagonal, as published, or ``nystrom``; ``_mixing`` adds a mixing.
        whitening: ZCA-whiten the images, as published; ``mirrored``: fitted to mirror images, too,
            at half of the cost; or ``patches``: the same of 7×7 patches, a convolution: small in
            files and quicker to fit, but slower to learn.
        whiten_inducing: choose inducing patches from whitened images.
        inducing_start: inducing patches start at patches of images chosen at random, as published,
            or at the centres of clusters of them: a few then cover all directions.
        mixing_start: start values of the mixing of inducing points.

    Example:
        >>> import torch
        >>> from gramian import ConvDKM, ConvDKMConfig
        >>> with torch.device("meta"):  # the paper's size, without its memory
        ...     model = ConvDKM.from_config(ConvDKMConfig())
        >>> sum(values.numel() for values in model.parameters())
        316442198
    """

    image_shape: tuple[int, int, int] = (3, 32, 32)
    num_inducing: tuple[int, ...] = (512, 1024, 2048)
    blocks_per_stage: int = 3
    strides: tuple[int, ...] = (2, 2, 2)
    stem_stride: int = 1
    residual_weights: tuple[float, float] | Literal["mean"] = (0.5, 0.5)
    pooling: Literal["mean", "nystrom", "mean_mixing", "nystrom_mixing"] = "mean"
    whitening: Whitening = True
    whiten_inducing: bool = False
    inducing_start: InducingStart = "random"
    mixing_start: MixingStart = "random"

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        super().__post_init__()
        if len(self.strides) != len(self.num_inducing):
            raise ValueError(
                f"one stride per stage: {len(self.num_inducing)} stages in num_inducing, "
                f"but strides = {self.strides}"
            )
        most = MOST_LAYERS // 2 // len(self.num_inducing)
        check_at_most(most, blocks_per_stage=self.blocks_per_stage)
        weights = self.weights_of_block(1)
        if not (min(weights) >= 0 < sum(weights) < math.inf):
            raise ValueError(f"residual_weights must be 0 or more and not both 0, got {weights}")

    def build_conv(self, P_in: int, P: int, filter_size: int, stride: int) -> KernelConv:
        """A kernel convolution."""
        return KernelConv(P_in, P, filter_size, stride, self.mixing_start)

    def weights_of_block(self, number: int) -> tuple[float, float]:
        """Of the shortcut and of the main branch, in block 1, 2, …."""
        if self.residual_weights == "mean":
            return number / (number + 1), 1 / (number + 1)
        return self.residual_weights

    def build_block(
        self, P_in: int, P: int, space: Space, stride: int, number: int = 1
    ) -> ResidualBlock:
        """Block 1, 2, … of the model; its shortcut is the identity where that fits."""
        shortcut = None
        if stride != 1 or P_in != P:
            shortcut = Shortcut(self.build_conv(P_in, P, 1, stride), self.build_norm(P, space))
        return ResidualBlock(
            self.build_layer(P_in, P, space, stride),
            self.build_layer(P, P, space, 1),
            shortcut,
            self.weights_of_block(number),
        )

    def build_pooling(self, P: int, num_pixels: int) -> Pooling:
        """The pooling."""
        check = self.variance_check
        match self.pooling:
            case "mean":
                return SpatialMean(None, check)
            case "mean_mixing":
                return SpatialMean((P, num_pixels, P), check)
            case "nystrom":
                return NystromMean(None, check)
            case "nystrom_mixing":
                return NystromMean((P, P), check)


class ConvDKM(DKM):
    """Input patches → stem → stages of residual blocks → pooling → kernel → norm → GP output.

        block(G) = w_s · shortcut(G) + w_m · layer(layer(G))

    A layer is a ``DKMLayer``. Images [B, channels, H, W] → ``DKMResult`` with q(f) [B, C].

    Example:
        >>> import torch
        >>> from gramian import ConvDKM, ConvDKMConfig
        >>> config = ConvDKMConfig(image_shape=(1, 8, 8), num_inducing=(4, 8), strides=(2, 2))
        >>> draw = torch.Generator().manual_seed(0)
        >>> images = torch.rand(100, 1, 8, 8, generator=draw)
        >>> model = ConvDKM.from_config(config)
        >>> model.initialise_(images, draw)
        >>> model(images, model.draw_noise(draw)).marginals.mean.shape
        torch.Size([100, 10])
        >>> list(model.layers)[:3]
        ['stem', 'stage1_block1', 'stage1_block2']
    """

    config: ConvDKMConfig

    @classmethod
    def from_config(cls, config: ConvDKMConfig) -> ConvDKM:
        """Build the model; ``initialise_`` then gives it start values."""
        channels, height, width = config.image_shape
        P, stride = config.num_inducing[0], config.stem_stride
        space = (math.ceil(height / stride), math.ceil(width / stride))
        layers: dict[str, Layer[Any]] = {"stem": config.build_layer(P, P, space, stride)}
        stages = zip(config.num_inducing, config.strides, strict=True)
        for stage, (P_out, stage_stride) in enumerate(stages, start=1):
            for block in range(1, config.blocks_per_stage + 1):
                stride = stage_stride if block == 1 else 1
                space = (math.ceil(space[0] / stride), math.ceil(space[1] / stride))
                name = f"stage{stage}_block{block}"
                layers[name] = config.build_block(P, P_out, space, stride, len(layers))
                P = P_out
        model = cls(
            data_shape=config.image_shape,
            whitening=build_whitening(config.whitening, config.image_shape),
            inputs=PatchInput(config.num_inducing[0], channels, start=config.inducing_start),
            layers=layers,
            pooling=config.build_pooling(P, math.prod(space)),
            kernel=config.build_kernel(config.output_bandwidth),
            norm=config.build_norm(P, ()),
            output=config.build_output(P),
            likelihood=build_likelihood(config),
            whiten_inducing=config.whiten_inducing,
        )
        model.config = config
        return model
