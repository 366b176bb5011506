"""The two models that are compared, the data they see, and a training step of each."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy

from gramian.nn.baseline.resnet import ResNet
from gramian.nn.conv_dkm import ConvDKM, ConvDKMConfig
from gramian.train.config import TrainConfig
from gramian.train.objective import objective
from gramian.train.runtime.seeds import generator

SEED = 0
NUM_DATA = 50_000  # weighs the KL terms; no time depends on it


@dataclass(frozen=True, slots=True)
class Batch:
    """Images [B, 3, 32, 32] and their classes."""

    images: Tensor
    labels: Tensor


def synthetic_batch(size: int, layout: torch.memory_format = torch.contiguous_format) -> Batch:
    """Smooth random images with random classes; ``layout`` is that of the memory."""
    draw = generator(SEED, "bench data")
    noise = torch.randn(size, 3, 36, 36, generator=draw)
    smooth = 3 * avg_pool2d(noise, 5, stride=1) + 0.3 * noise[:, :, 2:-2, 2:-2]
    labels = torch.randint(10, (size,), generator=draw)
    return Batch(smooth.contiguous(memory_format=layout), labels)


class Subject(ABC):
    """A model in training."""

    layout: torch.memory_format
    """In which the images of a batch come."""

    optimiser: torch.optim.Optimizer

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """What the optimiser minimises."""

    @abstractmethod
    def freeze(self) -> nn.Module:
        """The model as it predicts: images → outputs."""

    def batch(self, size: int) -> Batch:
        """A batch in the model's layout."""
        return synthetic_batch(size, self.layout)

    def step(self, batch: Batch) -> None:
        """One training step."""
        self.optimiser.zero_grad()
        self.loss(batch).backward()
        self.optimiser.step()


class NetworkSubject(Subject):
    """The ResNet-20, with channels last and stochastic gradient descent."""

    layout = torch.channels_last

    def __init__(self, widths: tuple[int, ...]) -> None:
        with torch.random.fork_rng(devices=[]):  # PyTorch's layers draw from its own generator
            torch.default_generator.manual_seed(SEED)
            self.model = ResNet(widths=widths)
        self.model.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.optimiser = torch.optim.SGD(
            self.model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4
        )

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy."""
        return cross_entropy(self.model(batch.images), batch.labels)

    def freeze(self) -> nn.Module:
        """A copy in evaluation mode."""
        return copy.deepcopy(self.model).eval()


class DKMSubject(Subject):
    """The deep kernel machine, with fused Adam as in the trainer."""

    layout = torch.contiguous_format

    def __init__(self, widths: tuple[int, ...]) -> None:
        self.model = ConvDKM.from_config(ConvDKMConfig(num_inducing=widths))
        self.draw = generator(SEED, "bench noise")
        self._start()
        self.optimiser = torch.optim.Adam(
            self.model.parameters(), lr=1e-3, betas=TrainConfig().betas, fused=True
        )

    def loss(self, batch: Batch) -> Tensor:
        """The negative objective, with fresh noise."""
        model, draw = self.model, self.draw
        result = model(batch.images, model.draw_noise(draw))
        samples = model.draw_samples(len(batch.labels), draw)
        return objective(result, model.likelihood, batch.labels, samples, NUM_DATA).loss

    def freeze(self) -> nn.Module:
        """The model's own frozen form."""
        return self.model.freeze()

    def _start(self) -> None:
        """Start values, but for the whitening, which multiplies by the identity.

        To fit it takes longer and more memory than many steps, and a step the same time after it.
        """
        whitening, self.model.whitening = self.model.whitening, None
        self.model.initialise_(synthetic_batch(64).images, self.draw)
        self.model.whitening = whitening


SUBJECTS: dict[str, Callable[[tuple[int, ...]], Subject]] = {
    "network": NetworkSubject,
    "dkm": DKMSubject,
}
"""Of the widths of the stages, in the order in which they take turns."""
