"""Real targets and counts: what they have in common, whatever their density."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gramian.gram.blocks import Marginals
from gramian.gram.errors import checks_are_deferred
from gramian.gram.linalg import mean_and_std
from gramian.nn.likelihoods.likelihood import (
    Estimator,
    Likelihood,
    LikelihoodConfig,
    Named,
    Targets,
    received,
    sample,
)
from gramian.nn.likelihoods.metric_sums import Metrics, TargetMetrics
from gramian.nn.parameters import start_at
from gramian.nn.setting_checks import check_positive

NODES, WEIGHTS = (
    torch.from_numpy(values)[:, None, None] for values in np.polynomial.hermite_e.hermegauss(64)
)
"""Of Gauss-Hermite quadrature, [64, 1, 1]: E[g(ε)] ≈ Σ WEIGHTS/√2π · g(NODES) for normal ε."""


class PerTarget(Likelihood):
    """p(y | f) = Π_c p(y_c | f_c), for targets y [B, C], each with a function of its own.

    A subclass has three methods to write, ``log_density``, ``moments`` and ``draw``, in units where
    each target has mean 0 and deviation 1: z = (y − shift) / scale. ``fit_targets_`` sets both.
    They stay float64 in a model of float32, and so do predictions where float32 has too few digits
    for the targets, such as Unix times.
    Expectations are Gauss-Hermite sums, accurate as long as the density is not much narrower than
    q(f), or Monte-Carlo means. Log-likelihoods are those of y: log p(y) = log p(z) − log scale.

    Args:
        num_outputs, num_samples, estimator: as for every likelihood.

    Example:
        >>> import torch
        >>> from gramian import Marginals, PerTarget
        >>> class Laplace(PerTarget):
        ...     def log_density(self, z, f):
        ...         return -(z - f).abs() - torch.tensor(2.0).log()
        ...     def moments(self, q, noise):
        ...         return q.mean, q.var + 2
        ...     def draw(self, f, generator):
        ...         raise NotImplementedError
        >>> q, y = Marginals(torch.zeros(1, 1), torch.ones(1, 1)), torch.zeros(1, 1)
        >>> log_p = Laplace(1).expected_log_prob(q, y, noise=torch.zeros(1, 1, 1))
        >>> round(log_p.item(), 1)  # −√(2/π) − log 2 = −1.49
        -1.5
    """

    targets: ClassVar[Targets] = "real"
    shift: Tensor
    scale: Tensor

    def __init__(
        self, num_outputs: int, num_samples: int = 1000, estimator: Estimator = "exact"
    ) -> None:
        super().__init__(num_outputs, num_samples, estimator)
        self.register_buffer("shift", torch.zeros(num_outputs, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(num_outputs, dtype=torch.float64))
        self.needs_float64 = False

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PerTarget:
        """Move or convert all but the precision of the units, where the device has float64."""
        units = {"shift": self.shift, "scale": self.scale}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, value in units.items():
            device = getattr(self, name).device
            setattr(self, name, received(value, device))
        return self

    @abstractmethod
    def log_density(
        self, z: Float[Tensor, "B C"], f: Float[Tensor, "S B C"]
    ) -> Float[Tensor, "S B C"]:
        """Return log p(z | f) of each target."""

    @abstractmethod
    def moments(
        self, q: Marginals, noise: Float[Tensor, "S #B C"]
    ) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
        """Mean and variance of z."""

    @abstractmethod
    def draw(self, f: Float[Tensor, "S B C"], generator: torch.Generator) -> Float[Tensor, "S B C"]:
        """Draws of z, given f."""

    # ---- targets in their own units ----

    def check(self, y: Tensor, batch: int) -> None:
        """Raise unless ``y`` are finite numbers of shape [batch, C]."""
        if y.dtype == torch.bool or y.is_complex():
            raise TypeError(f"targets must be real numbers, got {y.dtype}")
        if y.shape != (batch, self.num_outputs):
            raise ValueError(
                f"targets must have shape {(batch, self.num_outputs)}, got {tuple(y.shape)}"
            )
        bad = 0 if checks_are_deferred() else int((~y.isfinite()).sum())
        if bad:
            raise ValueError(f"targets must be finite, got {bad} NaN or infinite entries")

    @torch.no_grad()
    def fit_targets_(self, y: Tensor, weights: Float[Tensor, " N"] | None = None) -> None:
        """Set ``shift`` and ``scale`` to the mean and deviation of each target.

        The scale of a target whose values are all equal is 1.
        """
        self.check(y, len(y))
        mean, std = mean_and_std(y, weights)
        self.shift.copy_(mean)
        self.scale.copy_(std)
        self._note_digits()

    def _note_digits(self) -> None:
        """Note whether float32 resolves less than a thousandth of a deviation of the targets."""
        a, b = self.units
        self.needs_float64 = bool((torch.finfo(torch.float32).eps * a.abs() > 1e-3 * b).any())

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load, and note what the units need."""
        super()._load_from_state_dict(*args, **kwargs)
        self._note_digits()

    @property
    def units(self) -> tuple[Float[Tensor, " C"], Float[Tensor, " C"]]:
        """(a, b) of y = a + b·z."""
        return self.shift, self.scale

    def scaled(self, y: Tensor, like: Tensor) -> Float[Tensor, "B C"]:
        """z, as many as ``like`` has rows and of its dtype.

        Targets may be of higher precision: the mean of years like 2011.5 is taken off first.
        """
        self.check(y, len(like))
        a, b = self.units
        return ((y.to(torch.promote_types(y.dtype, a.dtype)) - a) / b).to(like.dtype)

    def log_unit(self) -> Float[Tensor, ""]:
        """Σ_c log b_c, by which log p(z) and log p(y) differ."""
        return self.units[1].log().sum()

    def latent(self, q: Marginals) -> Marginals:
        """q(f) in the units of the targets."""
        return Marginals(
            self._rounded(q.mean * self.scale + self.shift, q),
            self._rounded(q.var * self.scale.square(), q),
        )

    def _rounded(self, values: Tensor, q: Marginals) -> Tensor:
        """Values in the units of the targets, in q's precision unless they need float64."""
        return values if self.needs_float64 else values.to(q.mean.dtype)

    # ---- expectations ----

    def expected_log_prob(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> Float[Tensor, " B"]:
        """Σ_c E_q[log p(y_c | f_c)]."""
        log_p = self.log_density(self.scaled(y, q.mean), sample(q, self._points(q, noise)))
        return self._mean(log_p).sum(-1) - self.log_unit()

    def log_marginal(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> Float[Tensor, " B"]:
        """Σ_c log E_q[p(y_c | f_c)]."""
        log_p = self.log_density(self.scaled(y, q.mean), sample(q, self._points(q, noise)))
        if self.estimator == "exact":
            log_mean = (log_weights(log_p) + log_p).logsumexp(0)
        else:
            log_mean = log_p.logsumexp(0) - math.log(len(log_p))
        return log_mean.sum(-1) - self.log_unit()

    def derivatives(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
        """E_q[ℓ'] and −E_q[ℓ''] = −E_q[ℓ'·x]/s, with ℓ = log p and f = mean + s·x (Stein).

        ℓ' comes from automatic differentiation; ℓ may have kinks. w is negative where ℓ is, on
        average, not concave. A deviation s below 1e-4, in units of the targets', counts as 1e-4.
        """
        wide, x = Marginals(q.mean, q.var.clamp_min(1e-8)), self._points(q, noise)
        with torch.enable_grad():
            f = sample(wide, x).detach().requires_grad_()
            log_p = self.log_density(self.scaled(y, q.mean), f).sum()
            (slope,) = torch.autograd.grad(log_p, f)
        return self._mean(slope), -self._mean(slope * x) / wide.var.sqrt()

    def _points(self, q: Marginals, noise: Tensor) -> Tensor:
        """Where f is evaluated, in deviations from its mean."""
        return (NODES if self.estimator == "exact" else noise).to(q.mean)

    def _mean(self, values: Float[Tensor, "S B C"]) -> Float[Tensor, "B C"]:
        """The mean over those points."""
        exact = self.estimator == "exact"
        return (log_weights(values).exp() * values).sum(0) if exact else values.mean(0)

    # ---- predictions ----

    def predict(self, q: Marginals, noise: Float[Tensor, "S #B C"]) -> Named:
        """``mean`` and ``variance`` of the targets, noise included."""
        (mean, var), (a, b) = self.moments(q, noise), self.units
        found = {"mean": a + b * mean, "variance": b.square() * var}
        return {name: self._rounded(value, q) for name, value in found.items()}

    @torch.no_grad()
    def draw_targets(
        self, f: Float[Tensor, "S B C"], generator: torch.Generator
    ) -> Float[Tensor, "S B C"]:
        """Draws of y, given draws of f."""
        a, b = self.units
        return a + b * self.draw(f, generator)

    def metrics(self) -> TargetMetrics:
        """Errors, log-likelihood and coverage."""
        return TargetMetrics(self.scale.tolist())

    def add_to_(
        self,
        metrics: Metrics,
        q: Marginals,
        y: Tensor,
        noise: Float[Tensor, "S #B C"],
        weights: Float[Tensor, " B"] | None = None,
    ) -> None:
        """Add a batch."""
        assert isinstance(metrics, TargetMetrics)
        prediction = self.predict(q, noise)
        log_prob = self.log_marginal(q, y, noise)
        metrics.update(prediction["mean"], prediction["variance"], y, log_prob, weights)


class WithNoise(PerTarget):
    """A density with a learned variance σ²_c of its noise, in units of the targets' variance.

    Args (besides those of every likelihood):
        noise_var: start value of σ².
        shared_noise: learn one noise for all targets, and not one for each.
    """

    def __init__(
        self,
        num_outputs: int,
        num_samples: int = 1000,
        estimator: Estimator = "exact",
        noise_var: float = 1.0,
        shared_noise: bool = False,
    ) -> None:
        super().__init__(num_outputs, num_samples, estimator)
        check_positive(noise_var=noise_var)
        self.noise_shape = () if shared_noise else (num_outputs,)
        self.log_noise_var = start_at(math.log(noise_var), *self.noise_shape)

    @classmethod
    def from_config(cls, config: LikelihoodConfig) -> WithNoise:
        """With the noise's start value."""
        return cls(
            config.num_outputs,
            config.num_samples,
            config.estimator,
            noise_var=config.noise_var,
            shared_noise=config.shared_noise,
        )

    @property
    def noise_var(self) -> Float[Tensor, "*C"]:
        """σ² of each target, or of all."""
        return self.log_noise_var.exp()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Load a noise of old models, which all targets shared, as that of each."""
        for name, parameter in self.named_parameters():
            saved = state_dict.get(prefix + name)
            if saved is not None and saved.ndim == 0:
                state_dict[prefix + name] = saved.expand_as(parameter)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def log_weights(like: Tensor) -> Float[Tensor, "S 1 1"]:
    """Logarithms of the weights of the quadrature, which add up to 1."""
    return (WEIGHTS.log() - 0.5 * math.log(2 * math.pi)).to(like)


def log_normal(y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """Return log N(y; mean, var)."""
    return -0.5 * ((y - mean).square() / var + var.log() + math.log(2 * math.pi))
