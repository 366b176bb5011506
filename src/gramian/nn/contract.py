"""What a model is to the rest of the library: what it works out, what it says, what it can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import Marginals
from gramian.gram.errors import checks_are_deferred
from gramian.nn.checks import check_features
from gramian.nn.likelihoods import Likelihood, draw_noise
from gramian.nn.steps.output import OutputState
from gramian.nn.steps.pooling import PooledState

ByPath = Mapping[str, Tensor]
"""Tensors by module path: noise and KL of a Gram layer, mean of a norm, clamps of a layer."""


@dataclass(frozen=True, slots=True)
class InducingChain:
    """All that a model works out from its parameters and noise alone, before it meets data."""

    input_ii: Tensor
    layers: dict[str, Any]  # the state of each layer
    pooled: PooledState
    K_ii: Tensor
    top_ii: Tensor
    output: OutputState


@dataclass(frozen=True, slots=True)
class DKMResult:
    """What a model says about a batch.

    Attributes:
        marginals: q(f) of each data point.
        kl: KL of each Gram layer (times ν) and of the output, by module path.
        seen: mean of each normalisation and number of clamped variances of each Gram layer, by
            module path.

    Example:
        >>> import torch
        >>> from gramian import DenseDKM, DenseDKMConfig
        >>> x, draw = torch.eye(6, 3), torch.Generator().manual_seed(0)
        >>> model = DenseDKM.from_config(DenseDKMConfig(num_features=3, num_inducing=5))
        >>> model.initialise_(x, draw)
        >>> result = model(x, model.draw_noise(draw))  # a DKMResult
        >>> tuple(result.marginals.mean.shape), list(result.kl)
        ((6, 2), ['layer1.gram', 'output'])
    """

    marginals: Marginals
    kl: ByPath
    seen: ByPath

    @property
    def total_kl(self) -> Float[Tensor, ""]:
        """Sum of all KL terms; 0 if there is none."""
        if not self.kl:
            return self.marginals.mean.new_zeros(())
        return torch.stack(list(self.kl.values())).sum()


class Trainable(nn.Module, ABC):
    """A model that gives marginals q(f) of a batch, KL terms, and takes all noise as arguments.

    Args:
        data_shape: shape of one data point: (channels, height, width) or (features,).
        num_outputs: C, how many functions f there are.
        likelihood: of the targets, given f.
    """

    initialised: Tensor

    def __init__(
        self, data_shape: tuple[int, ...], num_outputs: int, likelihood: Likelihood
    ) -> None:
        super().__init__()
        self.data_shape = data_shape
        self.num_outputs = num_outputs
        self.likelihood = likelihood
        self.register_buffer("initialised", torch.tensor(False))

    @abstractmethod
    def forward(self, x: Tensor, noise: ByPath | None = None) -> DKMResult:
        """Marginals of a batch ``[B, *data_shape]``, and the KL terms."""

    @abstractmethod
    def initialise_(
        self,
        x: Tensor,
        generator: torch.Generator,
        *,
        weights: Float[Tensor, " N"] | None = None,
    ) -> None:
        """All start-up that needs data or randomness. A forward pass before it raises.

        What is chosen among the data is chosen by their ``weights``; None for 1.
        """

    @abstractmethod
    def estimate_statistics_(self, batches: Iterable[Tensor]) -> None:
        """Set the running statistics of the normalisations to those of the data of ``batches``."""

    @abstractmethod
    def running_statistics(self) -> list[Tensor]:
        """The buffers that a forward pass in training mode moves."""

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the parameters, which data must have too."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def for_prediction(self) -> Callable[[Tensor], Marginals]:
        """Data → marginals, with the parameters as they are now."""
        return self.predict

    @torch.no_grad()
    def predict(self, x: Tensor) -> Marginals:
        """Marginals in evaluation mode."""
        with evaluating(self):
            return self(x).marginals

    def draw_noise(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Fresh noise for one training step, by path; {} for a model without any.

        The generator's device draws it, and it is where the model is.
        """
        return {}

    def draw_samples(self, batch: int, generator: torch.Generator) -> Float[Tensor, "S #B C"]:
        """Fresh Monte-Carlo noise for the likelihood; ``batch`` = 1 shares it over a batch."""
        shape = (batch, self.num_outputs)
        noise = draw_noise(self.likelihood.num_samples, shape, generator, self.dtype)
        return noise.to(self.device)

    def check_initialised(self) -> None:
        """Raise unless the model has start values."""
        if not checks_are_deferred() and not self.initialised:
            raise RuntimeError(
                "the model has no start values yet: call model.initialise_(data, generator) "
                "or load a state dict first"
            )

    def check_data(self, x: Tensor) -> None:
        """Raise unless ``x`` is a batch for this model: shape, dtype, finite."""
        what = "images" if len(self.data_shape) == 3 else "data"
        check_features(x, ("batch", *self.data_shape), self.dtype, what)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards the mode that was."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """Training mode inside; afterwards evaluation mode, no gradients, and free what was free."""
    trainable = [parameter.requires_grad for parameter in model.parameters()]
    model.train()
    try:
        yield
    finally:
        model.eval()
        for parameter, wanted in zip(model.parameters(), trainable, strict=True):
            parameter.requires_grad_(wanted)
            parameter.grad = None
