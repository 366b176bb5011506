"""From stored data to what the model sees: mean 0 and standard deviation 1, by fixed numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64, Shaped, UInt8
from torch import Tensor

from gramian.gram.linalg import mean_and_std
from gramian.train.data.data_errors import DataError


@dataclass(frozen=True, slots=True)
class Normaliser:
    """(x/255 − mean) / std for each channel of uint8 images."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse scales without a meaning."""
        _check("Normaliser", self.mean, self.std)

    @classmethod
    def fit(
        cls, images: UInt8[Tensor, "N C H W"], weights: Float64[Tensor, " N"] | None = None
    ) -> Normaliser:
        """Mean and population deviation of all pixels; a constant channel keeps scale 1.

        An image of weight 2 counts as two.
        """
        w = None if weights is None else weights.cpu().repeat_interleave(images[0, 0].numel())
        levels = torch.arange(256, dtype=torch.float64) / 255
        mean, std = [], []
        for channel in images.cpu().unbind(1):
            # The histogram gives exact moments without a float64 copy of all images.
            count = torch.bincount(channel.flatten(), w, minlength=256).double()
            share = count / count.sum()
            mean.append(float(share @ levels))
            deviation = math.sqrt(float(share @ (levels - mean[-1]).square()))
            std.append(1.0 if (share > 0).sum() == 1 else deviation)
        return cls(tuple(mean), tuple(std))

    def __call__(
        self, images: Shaped[Tensor, "B C H W"], dtype: torch.dtype
    ) -> Float[Tensor, "B C H W"]:
        """The images as the model sees them."""
        if images.dtype != torch.uint8:
            raise DataError(
                "the model was trained on uint8 images, of 0 to 255, but these are "
                f"{str(images.dtype).removeprefix('torch.')}: convert them as those were"
            )
        mean, std = _constants(self.mean, self.std, images, dtype, "channels")
        return (images.to(dtype) / 255 - mean[:, None, None]) / std[:, None, None]

    def to_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return {"kind": "normaliser", "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Normaliser:
        """The inverse of ``to_dict``."""
        return cls(*_numbers(values, "normaliser"))


@dataclass(frozen=True, slots=True)
class RowScaler:
    """(x − mean) / std for each feature of rows, or each channel of floating-point images."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse scales without a meaning."""
        _check("RowScaler", self.mean, self.std)

    @classmethod
    def fit(
        cls, x: Float[Tensor, "N D *space"], weights: Float64[Tensor, " N"] | None = None
    ) -> RowScaler:
        """Mean and population deviation over rows (pixels); a constant feature keeps scale 1.

        A row of weight 2 counts as two.
        """
        rows = x.detach().cpu().double().movedim(1, -1).flatten(0, -2)
        if weights is not None:
            found = mean_and_std(rows, weights.cpu().repeat_interleave(len(rows) // len(x)))
            return cls(*(tuple(values.tolist()) for values in found))
        std = rows.std(0, correction=0)
        std[(rows == rows[0]).all(0) | (std == 0)] = 1
        return cls(tuple(rows.mean(0).tolist()), tuple(std.tolist()))

    @classmethod
    def none(cls, num_features: int) -> RowScaler:
        """The scaler that changes nothing."""
        return cls((0.0,) * num_features, (1.0,) * num_features)

    def __call__(
        self, x: Shaped[Tensor, "B D *space"], dtype: torch.dtype
    ) -> Float[Tensor, "B D *space"]:
        """The data as the model sees them, computed in their own precision; integers in float64."""
        x = x if x.is_floating_point() else x.double()
        mean, std = _constants(self.mean, self.std, x, x.dtype, "features")
        if x.ndim == 4:
            mean, std = mean[:, None, None], std[:, None, None]
        return ((x - mean) / std).to(dtype)

    def to_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return {"kind": "row_scaler", "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RowScaler:
        """The inverse of ``to_dict``."""
        return cls(*_numbers(values, "row_scaler"))


Scaler = Normaliser | RowScaler


def scaler_from_dict(values: Mapping[str, Any]) -> Normaliser | RowScaler:
    """The scaler that ``to_dict`` described."""
    kinds = {"normaliser": Normaliser, "row_scaler": RowScaler}
    kind = values.get("kind")
    if kind not in kinds:
        raise DataError(f"the kind of a scaler must be one of {sorted(kinds)}, got {kind!r}")
    return Normaliser.from_dict(values) if kind == "normaliser" else RowScaler.from_dict(values)


def _check(what: str, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """As many positive deviations as means, all finite."""
    if not mean or len(mean) != len(std):
        raise DataError(f"{what} needs as many std as mean, got {len(std)} and {len(mean)}")
    if not all(map(math.isfinite, mean)) or not all(0 < value < math.inf for value in std):
        raise DataError(f"{what} needs finite mean and positive std, got {mean} and {std}")


def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], x: Tensor, dtype: torch.dtype, what: str
) -> tuple[Tensor, Tensor]:
    """Mean and std as tensors beside ``x``, which must have as many channels or features."""
    if x.shape[1] != len(mean):
        raise DataError(f"this scaler was made for {len(mean)} {what}, got {x.shape[1]}")
    both = torch.tensor([mean, std], dtype=dtype, device=x.device)
    return both[0], both[1]


def _numbers(values: Mapping[str, Any], kind: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of a description, with a clear error when they are not there."""
    if values.get("kind") != kind:
        raise DataError(f"expected a scaler of kind {kind!r}, got {values.get('kind')!r}")
    try:
        mean, std = (tuple(float(number) for number in values[key]) for key in ("mean", "std"))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"a {kind} needs lists of numbers 'mean' and 'std': {error!r}") from error
    return mean, std


# As published. The std is the mean over images of each one's own; over all pixels it is 0.247.
CIFAR_NORMALISER = Normaliser((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
