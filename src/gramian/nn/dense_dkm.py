"""The fully connected deep kernel machine, for tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gramian.nn.dkm_config import DKMConfig
from gramian.nn.layers import Layer
from gramian.nn.likelihoods import build_likelihood
from gramian.nn.model import DKM
from gramian.nn.steps.inputs import DenseInput, Lengthscales
from gramian.nn.steps.norm import NormChoice


@dataclass(frozen=True, kw_only=True)
class DenseDKMConfig(DKMConfig):
    """A fully connected DKM with inducing points.

    Args (besides those of DKMConfig):
        num_features: features of a data point.
        num_inducing: inducing points of every layer.
        num_layers: Gram layers. None at all is a sparse variational Gaussian process.
        lengthscales: learned scales of the features: none, one, or one per feature.

    Example:
        >>> from gramian import DenseDKM, DenseDKMConfig
        >>> config = DenseDKMConfig(num_features=3, num_layers=2, lengthscales="per_feature")
        >>> list(DenseDKM.from_config(config).layers)
        ['layer1', 'layer2']
    """

    num_features: int = 1
    num_outputs: int = 2
    num_inducing: int = 100
    num_layers: int = 1
    lengthscales: Lengthscales = "none"
    kernel: str = "squared_exponential"
    norm: NormChoice = NormChoice.off()
    tempered: bool = False


class DenseDKM(DKM):
    """Features → (kernel → Gram layer → norm) × num_layers → kernel → norm → GP output.

        G⁰ = X Xᵀ / features, of the data X and the learned inducing points X_i

    Rows [B, features] → ``DKMResult`` with q(f) of shape [B, C].

    Example:
        >>> import torch
        >>> from gramian import DenseDKM, DenseDKMConfig
        >>> x, draw = torch.eye(6, 3), torch.Generator().manual_seed(0)
        >>> model = DenseDKM.from_config(DenseDKMConfig(num_features=3, num_inducing=5))
        >>> model.initialise_(x, draw)
        >>> q = model.predict(x)
        >>> q.mean.shape, q.var.shape
        (torch.Size([6, 2]), torch.Size([6, 1]))
    """

    config: DenseDKMConfig

    @classmethod
    def from_config(cls, config: DenseDKMConfig) -> DenseDKM:
        """Build the model; ``initialise_`` then gives it start values."""
        P = config.num_inducing
        layers: dict[str, Layer[Any]] = {
            f"layer{number}": config.build_layer(P, P, (), 1)
            for number in range(1, config.num_layers + 1)
        }
        model = cls(
            data_shape=(config.num_features,),
            whitening=None,
            inputs=DenseInput(P, config.num_features, config.lengthscales),
            layers=layers,
            pooling=None,
            kernel=config.build_kernel(config.output_bandwidth),
            norm=config.build_norm(P, ()),
            output=config.build_output(P),
            likelihood=build_likelihood(config),
        )
        model.config = config
        return model
