"""A deep kernel machine: inputs → layers → pooling → kernel → normalisation → GP output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gramian.gram.blocks import GramBlocks, Marginals
from gramian.gram.errors import within
from gramian.gram.random import permutation
from gramian.nn.contract import ByPath, DKMResult, InducingChain, Trainable, evaluating
from gramian.nn.frozen.frozen_dkm import FrozenDKM
from gramian.nn.frozen.frozen_layers import FrozenOutput
from gramian.nn.layers import Layer, above, below, grams_of
from gramian.nn.likelihoods import Likelihood
from gramian.nn.steps.conv import KernelConv
from gramian.nn.steps.inputs import DenseInput, PatchInput
from gramian.nn.steps.kernels import Kernel
from gramian.nn.steps.norm import GramNorm
from gramian.nn.steps.output import GPOutput
from gramian.nn.steps.pooling import PooledState, Pooling
from gramian.nn.steps.whitening import AnyZCA


class DKM(Trainable):
    """A deep kernel machine from its parts. ``ConvDKM`` and ``DenseDKM`` build the usual ones.

        G⁰ → layers → G^L → pooling → kernel → norm → K
        mean = K_ti K_ii⁻¹ μ,  var = k_tt + diag(K_ti K_ii⁻¹ (Σ − K_ii) K_ii⁻¹ K_it)

    Data [B, channels, H, W] or [B, features] → ``DKMResult`` with q(f) of shape [B, C].

    Args:
        data_shape: shape of one data point: (channels, height, width) or (features,).
        whitening: fitted whitening of the data, or None.
        inputs: data → first Gram blocks.
        layers: Gram blocks → Gram blocks, by name, in order.
        pooling: pixels → images; None for dense data.
        kernel: the kernel of the output GP.
        norm: normalisation between that kernel and the output.
        output: Gram blocks → marginals.
        likelihood: of the targets, given the outputs.
        whiten_inducing: choose inducing inputs from whitened data. The published model takes them
            from the data as they are, and compares them with whitened data.

    ``recomputed`` names layers that keep only their input in memory and are computed again in the
    backward pass: less memory, more time, the same gradients.

    Example:
        >>> import torch
        >>> from gramian import DKM, DenseDKM, DenseDKMConfig
        >>> x, draw = torch.eye(6, 3), torch.Generator().manual_seed(0)
        >>> model: DKM = DenseDKM.from_config(DenseDKMConfig(num_features=3, num_inducing=4))
        >>> model.initialise_(x, draw)
        >>> noise = model.draw_noise(draw)
        >>> {path: tuple(Z.shape) for path, Z in noise.items()}  # P × γ, of SKR
        {'layer1.gram': (4, 1)}
        >>> model(x, noise).marginals.mean.shape
        torch.Size([6, 2])
    """

    def __init__(
        self,
        *,
        data_shape: tuple[int, ...],
        whitening: AnyZCA | None,
        inputs: DenseInput | PatchInput,
        layers: dict[str, Layer[Any]],
        pooling: Pooling | None,
        kernel: Kernel,
        norm: GramNorm,
        output: GPOutput,
        likelihood: Likelihood,
        whiten_inducing: bool = False,
    ) -> None:
        super().__init__(data_shape, output.q_mean.shape[1], likelihood)
        self.whitening = whitening
        self.inputs = inputs
        self.layers = nn.ModuleDict(layers)
        self.pooling = pooling
        self.kernel = kernel
        self.norm = norm
        self.output = output
        self.whiten_inducing = whiten_inducing
        self.recomputed: frozenset[str] = frozenset()

    def forward(self, x: Tensor, noise: ByPath | None = None) -> DKMResult:
        """Marginals of a batch, and the KL terms.

        Args:
            x: the batch, ``[B, *data_shape]``.
            noise: ``draw_noise(generator)``, needed in training mode with SKR.

        In training mode the running means of the normalisations move towards the batch's.
        """
        self.check_initialised()
        self.check_data(x)
        chain = self.inducing_chain(noise or {})
        marginals, seen = self.propagate(x, chain)
        if self.training:
            self.update_statistics_(seen)
        return DKMResult(marginals, self.kl(chain), seen)

    def inducing_chain(self, noise: ByPath) -> InducingChain:
        """All that does not depend on the data: the inducing points' way through the layers."""
        self._check_noise(noise)
        input_ii = ii = self.inputs.inducing()
        states: dict[str, Any] = {}
        for name, layer in self._named_layers():
            with within(name):
                states[name] = state = layer.inducing(ii, below(name, noise))
            ii = state.ii
        with within("pooling"):
            pooled = PooledState(ii) if self.pooling is None else self.pooling.inducing(ii)
        K_ii = self.kernel.inducing(pooled.ii)
        top_ii = self.norm.inducing(K_ii)
        with within("output"):
            output = self.output.inducing(top_ii)
        return InducingChain(input_ii, states, pooled, K_ii, top_ii, output)

    def kl(self, chain: InducingChain) -> dict[str, Tensor]:
        """KL of each Gram layer (times ν) and of the output, by module path."""
        parts = {n: above(n, layer.kl(chain.layers[n])) for n, layer in self._named_layers()}
        grams = {path: kl for part in parts.values() for path, kl in part.items()}
        return {**grams, "output": self.output.kl(chain.top_ii, chain.output)}

    def propagate(self, x: Tensor, chain: InducingChain) -> tuple[Marginals, ByPath]:
        """The data through the layers, along the inducing chain: q(f), and what was seen."""
        seen: dict[str, Tensor] = {}
        gram = self.first_gram(x, chain)
        for name, layer in self._named_layers():
            with within(name):
                state = chain.layers[name]
                if name in self.recomputed and torch.is_grad_enabled():  # noise is an argument
                    gram, seen_here = checkpoint(
                        layer.data, gram, state, use_reentrant=False, preserve_rng_state=False
                    )
                else:
                    gram, seen_here = layer.data(gram, state)
            seen.update(above(name, seen_here))
        K, seen_top = self.top(gram, chain)
        seen.update(seen_top)
        with within("output"):
            return self.output.data(K, chain.output), seen

    def first_gram(self, x: Tensor, chain: InducingChain) -> GramBlocks:
        """Whitening and input Gram."""
        return self.inputs.data(self._whiten(x), chain.input_ii)

    def top(self, gram: GramBlocks, chain: InducingChain) -> tuple[GramBlocks, ByPath]:
        """Pooling, the last kernel and its normalisation."""
        pooled = gram if self.pooling is None else self.pooling.data(gram, chain.pooled)
        K = self.kernel.data(pooled, chain.K_ii)
        n_t = self.norm.data_mean(K.tt_diag)
        return self.norm.data(K, chain.top_ii, n_t), {"norm": n_t.detach()}

    @property
    def can_freeze(self) -> bool:
        """Whether predictions are a function of one data point, and not of its batch."""
        return not any(norm.depends_on_batch for _, norm in self._named_norms())

    def for_prediction(self) -> Callable[[Tensor], Marginals]:
        """The frozen form; a model that normalises by the batch at hand has none."""
        return self.freeze() if self.can_freeze else self.predict

    @torch.no_grad()
    def predict(self, x: Tensor) -> Marginals:
        """Marginals in evaluation mode, without KL terms."""
        self.check_initialised()
        self.check_data(x)
        with evaluating(self):
            return self.propagate(x, self.inducing_chain({}))[0]

    @torch.no_grad()
    def freeze(self) -> FrozenDKM:
        """The model as it is now, for prediction only: what the data do not need is computed once.

        Exact, several times faster and free of factorisations, so that it can be exported. Needs
        running statistics in the normalisations.
        """
        self.check_initialised()
        layers = dict[str, nn.Module]()
        with evaluating(self):
            chain = self.inducing_chain({})
            ii = chain.input_ii
            for name, layer in self._named_layers():
                layers[name] = layer.freeze(ii, chain.layers[name])
                ii = chain.layers[name].ii
            return FrozenDKM(
                whitening=self.whitening,
                inputs=self.inputs,
                layers=layers,
                pooling=self.pooling,
                pooled=chain.pooled,
                output=FrozenOutput(
                    self.kernel, self.norm, chain.pooled.ii, chain.K_ii, chain.output
                ),
                variance_check=self.output.variance_check,
            )

    def draw_noise(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Fresh SKR noise for one training step, one per Gram layer; {} in evaluation mode."""
        return {
            path: gram.skr.draw_noise(gram.num_inducing, generator, self.dtype).to(self.device)
            for path, gram in grams_of(self.layers).items()
            if gram.samples
        }

    @torch.no_grad()
    def initialise_(
        self,
        x: Tensor,
        generator: torch.Generator,
        inducing: Tensor | None = None,
        *,
        weights: Float[Tensor, " N"] | None = None,
    ) -> None:
        """All start-up that needs data or randomness. A forward pass before it raises.

        Fits the whitening, chooses inducing inputs among ``x``, draws the mixing and the output's
        start values, starts each Gram matrix at the kernel it meets (with SKR's sampling in
        training mode, as published), and sets the running means of the normalisations.

        Args:
            x: data like those to train on, ``[N, *data_shape]``.
            generator: draws everything that is random.
            inducing: inducing inputs, instead of chosen ones.
            weights: of the data, for the choice: a point of weight 2 is chosen as one of two.
        """
        self.check_data(x)
        self.initialised.fill_(False)
        if self.whitening is not None:
            self.whitening.fit_(x)
        if inducing is None:
            whiten = self.whitening if self.whiten_inducing else None
            inducing = self.inputs.choose_inducing(x, generator, whiten, weights)
        self.inputs.set_inducing_(inducing)
        for module in self.modules():
            if isinstance(module, KernelConv | Pooling):
                module.start_(generator)
        noise = self.draw_noise(generator)
        self.start_grams_(noise)
        self.output.start_(self.inducing_chain(noise).top_ii, generator)
        some = permutation(len(x), generator)[:256]
        self.estimate_statistics_([x[some.to(x.device)]])
        self.initialised.fill_(True)

    @torch.no_grad()
    def start_grams_(self, noise: ByPath) -> None:
        """Start each G_ii at the kernel K_ii that it meets, from the bottom to the top."""
        self._check_noise(noise)
        ii = self.inputs.inducing()
        for name, layer in self._named_layers():
            with within(name):
                ii = layer.start_(ii, below(name, noise))

    def running_statistics(self) -> list[Tensor]:
        """The running means of the normalisations."""
        means = (norm.running_mean for _, norm in self._named_norms())
        return [mean for mean in means if mean is not None]

    def update_statistics_(self, seen: ByPath, momentum: float | None = None) -> None:
        """Move the running mean of each normalisation towards the mean seen in a batch."""
        for path, norm in self._named_norms():
            norm.update_(seen[path], momentum)

    @torch.no_grad()
    def estimate_statistics_(self, batches: Iterable[Tensor]) -> None:
        """Set the running means to averages over the data of ``batches``, without SKR's sampling.

        A normalisation meets what those before it have normalised by the means of a batch.
        The running average from training lags behind the parameters and has seen noisy Gram
        matrices; a pass over training data after training removes both errors.
        """
        with evaluating(self):
            for _, norm in self._named_norms():
                norm.train()  # a normalisation in training mode takes the means of its batch
            chain = self.inducing_chain({})
            count = 0
            for x in batches:
                count += len(x)
                self.update_statistics_(self.propagate(x, chain)[1], momentum=len(x) / count)

    def _whiten(self, x: Tensor) -> Tensor:
        return x if self.whitening is None else self.whitening(x)

    def _named_layers(self) -> Iterator[tuple[str, Layer[Any]]]:
        for name, layer in self.layers.items():
            assert isinstance(layer, Layer)
            yield name, layer

    def _named_norms(self) -> Iterator[tuple[str, GramNorm]]:
        for path, module in self.layers.named_modules():
            if isinstance(module, GramNorm):
                yield path, module
        yield "norm", self.norm

    def _check_noise(self, noise: ByPath) -> None:
        unknown = set(noise) - set(grams_of(self.layers))
        if unknown:
            raise ValueError(f"noise names no Gram layer of this model: {sorted(unknown)}")
