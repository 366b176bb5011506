"""Temperature and vector scaling: probabilities made honest on data that were held out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gramian.gram.blocks import Marginals
from gramian.nn.likelihoods import Likelihood

AT_ONCE = 2**22
"""Samples of the logits of as many data points as are differentiated at once."""

ScalingKind = Literal["temperature", "vector"]


@dataclass(frozen=True, slots=True)
class LogitScaling:
    """f → scale ∘ f + shift, for the functions whose softmax are the probabilities.

    Of q(f) = N(mean, var) this is q with mean scale ∘ mean + shift and variance scale² ∘ var. A
    temperature T is one scale 1/T for all classes and no shift. It leaves the order of the means,
    which is that of the exact probabilities; samples of them may decide near ties in another way.
    A vector has a scale and a shift for each class (Guo et al. 2017).

    Args:
        scale: one, or one per class; positive.
        shift: one, or one per class.
    """

    scale: tuple[float, ...]
    shift: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        """Refuse numbers without a meaning."""
        for name, values in asdict(self).items():
            if not values or not all(
                isinstance(value, int | float) and math.isfinite(value) for value in values
            ):
                raise ValueError(f"{name} of a calibration must be finite numbers, got {values!r}")
        if min(self.scale) <= 0:
            raise ValueError(f"scale of a calibration must be positive, got {self.scale}")

    def __call__(self, q: Marginals) -> Marginals:
        """q of the scaled functions."""
        scale, shift = q.mean.new_tensor(self.scale), q.mean.new_tensor(self.shift)
        return Marginals(scale * q.mean + shift, scale.square() * q.var)

    @property
    def temperature(self) -> float | None:
        """T, if that is all there is."""
        alone = len(self.scale) == 1 and not any(self.shift)
        return 1 / self.scale[0] if alone else None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], num_classes: int) -> LogitScaling:
        """The inverse of ``asdict``."""
        scaling = cls(tuple(values["scale"]), tuple(values["shift"]))
        if not {len(scaling.scale), len(scaling.shift)} <= {1, num_classes}:
            raise ValueError(
                f"a calibration of {num_classes} classes has 1 or {num_classes} numbers, got "
                f"{len(scaling.scale)} and {len(scaling.shift)}"
            )
        return scaling


def fit_scaling(
    likelihood: Likelihood,
    q: Marginals,
    y: Tensor,
    samples: Tensor,
    kind: ScalingKind,
    weights: Tensor | None = None,
) -> LogitScaling:
    """The scaling with the largest log-likelihood of the labels, by L-BFGS in float64.

    Args:
        likelihood: of the model.
        q: of data that the model was not trained on.
        y: their labels.
        samples: the Monte-Carlo samples of all predictions.
        kind: temperature or vector.
        weights: of the data points; None for 1.
    """
    if kind not in get_args(ScalingKind):
        raise ValueError(f"a calibration is temperature or vector, got {kind!r}")
    var = q.var.double().clamp_min(1e-30)  # a network's is 0, where a root has no derivative
    q, samples = Marginals(q.mean.double(), var), samples.double()
    size = q.mean.shape[1] if kind == "vector" else 1
    log_scale, shift = q.mean.new_zeros(size), q.mean.new_zeros(size)
    free = [log_scale, shift] if kind == "vector" else [log_scale]
    for parameter in free:
        parameter.requires_grad_()
    search = torch.optim.LBFGS(free, max_iter=100, line_search_fn="strong_wolfe")

    shares = torch.full((len(y),), 1 / len(y)) if weights is None else weights / weights.sum()
    rows = max(1, AT_ONCE // samples.numel())

    def loss(part: slice) -> Tensor:
        scale = log_scale.exp()
        scaled = Marginals(scale * q.mean[part] + shift, scale.square() * q.var[part])
        log_p = likelihood.log_marginal(scaled, y[part], samples)
        return -(shares[part].to(log_p) * log_p).sum()

    def step() -> float:
        search.zero_grad()
        total = 0.0
        for start in range(0, len(y), rows):
            value = loss(slice(start, start + rows))
            value.backward()
            total += value.item()
        return total

    with torch.enable_grad():
        search.step(step)
    return LogitScaling(tuple(log_scale.exp().tolist()), tuple(shift.tolist()))
