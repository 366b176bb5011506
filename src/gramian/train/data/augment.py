"""Random crops and flips of whole batches, with an explicit generator (paper, appendix)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn.functional import pad

from gramian.train.data.data_errors import DataError


def random_crop(
    images: Shaped[Tensor, "B C H W"], padding: int, generator: torch.Generator
) -> Shaped[Tensor, "B C H W"]:
    """Windows of the old size at one random place per image, after ``padding`` zeros all round."""
    if padding < 0:
        raise DataError(f"the padding of a random crop must be 0 or more, got {padding}")
    if padding == 0:
        return images
    B, _, H, W = images.shape
    device = generator.device
    places = torch.randint(0, 2 * padding + 1, (2, B), generator=generator, device=device)
    top, left = places.to(images.device)
    windows = pad(images, (padding,) * 4).unfold(2, H, 1).unfold(3, W, 1)
    return windows[torch.arange(B, device=images.device), :, top, left]


def random_flip(
    images: Shaped[Tensor, "B C H W"], generator: torch.Generator
) -> Shaped[Tensor, "B C H W"]:
    """Each image as it is or mirrored left to right, with probability ½."""
    mirror = torch.rand(len(images), generator=generator, device=generator.device) < 0.5
    return torch.where(mirror.to(images.device)[:, None, None, None], images.flip(-1), images)


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Random crop, then random flip: what the published CIFAR models are trained with.

    Args:
        crop_padding: zeros around the image before a crop of the old size; 0: no crop.
        flip: whether to mirror half of the images.
    """

    crop_padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        """Refuse settings without a meaning."""
        if self.crop_padding < 0:
            raise DataError(f"crop_padding must be 0 or more, got {self.crop_padding}")

    def __call__(
        self, images: Shaped[Tensor, "B *shape"], generator: torch.Generator
    ) -> Shaped[Tensor, "B *shape"]:
        """Fresh crops and flips of a batch; rows are possible if both are off."""
        if self.crop_padding:
            images = random_crop(images, self.crop_padding, generator)
        return random_flip(images, generator) if self.flip else images
