"""The neural network beside which the paper puts its deep kernel machine: a ResNet-20."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import relu


class ResNetBlock(nn.Module):
    """x → shortcut + conv2(relu(norm2(conv1(a)))) with a = relu(norm1(x)): pre-activation.

    The shortcut is x itself, or a 1×1 convolution of a where the sizes differ, as published. (Its
    stride is taken before it: ``conv.convolve`` says why.)

    Args:
        width_in: channels before the block.
        width: channels after it.
        stride: of the first convolution and of the shortcut.
    """

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(width_in)
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or width_in != width:
            self.shortcut = nn.Conv2d(width_in, width, 1, bias=False)
        self.stride = stride

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Both branches."""
        a = relu(self.norm1(x))
        main = self.conv2(relu(self.norm2(self.conv1(a))))
        if self.shortcut is None:
            return main + x
        return main + self.shortcut(a[:, :, :: self.stride, :: self.stride])


class ResNet(nn.Module):
    """Stem → stages of blocks → mean over the pixels → linear. The widths and strides of ConvDKM.

    Args:
        image_shape: (channels, height, width).
        num_outputs: C, classes or targets.
        widths: channels of each stage.
        blocks_per_stage: blocks in a stage, two convolutions each.
        strides: stride of the first block of each stage.
        stem_stride: of the first convolution.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (3, 32, 32),
        num_outputs: int = 10,
        widths: tuple[int, ...] = (512, 1024, 2048),
        blocks_per_stage: int = 3,
        strides: tuple[int, ...] = (2, 2, 2),
        stem_stride: int = 1,
    ) -> None:
        super().__init__()
        width_in = widths[0]
        self.stem = nn.Conv2d(image_shape[0], width_in, 3, stem_stride, padding=1, bias=False)
        blocks: list[ResNetBlock] = []
        for width, stage_stride in zip(widths, strides, strict=True):
            for number in range(blocks_per_stage):
                blocks.append(ResNetBlock(width_in, width, stage_stride if number == 0 else 1))
                width_in = width
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(width_in, num_outputs)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        """Logits."""
        return self.linear(self.blocks(self.stem(images)).mean((2, 3)))
