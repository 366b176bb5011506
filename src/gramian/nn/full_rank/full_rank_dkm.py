"""Deep kernel machines without inducing points: every training point has its row in every G."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import GramBlocks, Marginals
from gramian.gram.errors import within
from gramian.gram.exact_gp import ExactGP, dirichlet_targets
from gramian.gram.full_blocks import FullBlocks, pool_data, pool_inducing
from gramian.nn.checks import check_features
from gramian.nn.full_rank.full_rank_config import FullRankConfig, check_training_data, num_pixels
from gramian.nn.full_rank.full_rank_layer import FullRankLayer, FullRankState
from gramian.nn.likelihoods import Gaussian, draw_noise
from gramian.nn.parameters import start_in_
from gramian.nn.steps.inputs import divided_by_lengthscales, log_lengthscales


@dataclass(frozen=True, slots=True)
class FullRankChain:
    """All that a model works out before it meets new data."""

    input_ii: Float[Tensor, "N N"]  # G⁰
    layers: dict[str, FullRankState]
    pooled_ii: Float[Tensor, "P P"]
    top_ii: Float[Tensor, "P P"]  # K(SpatialPool(G^L)), the prior covariance of the outputs


@dataclass(frozen=True, slots=True)
class FullRankTerms:
    """(1/P) of Eq. dkm_obfr or cdkm_fr_ob: what is maximised, and its parts.

        total = log_lik − (1/P) Σ_ℓ ν D(N(0, G^ℓ) ‖ N(0, K(G^{ℓ−1})))

    Attributes:
        log_lik: (1/P) of the log evidence, or of E_q[log p(y | f)].
        kl: of each Gram layer (times ν) and of a variational output, by path.
        num_data: P.

    Example:
        >>> import torch
        >>> from gramian import FullRankConfig, FullRankDKM
        >>> x = torch.linspace(-1, 1, 10, dtype=torch.float64)[:, None]
        >>> model = FullRankDKM(x, x.sin(), FullRankConfig(num_layers=2))
        >>> model.initialise_()
        >>> terms = model.objective()  # FullRankTerms, at the NNGP
        >>> abs(terms.total_kl.item()) < 1e-6, list(terms.kl)
        (True, ['layer1.gram', 'layer2.gram'])
    """

    log_lik: Float[Tensor, ""]
    kl: dict[str, Tensor]
    num_data: int

    @property
    def total_kl(self) -> Float[Tensor, ""]:
        """Sum of all KL terms, not divided by P."""
        return torch.stack([self.log_lik.new_zeros(()), *self.kl.values()]).sum()

    @property
    def total(self) -> Float[Tensor, ""]:
        """The objective, to be maximised."""
        return self.log_lik - self.total_kl / self.num_data


class FullRankModel(nn.Module):
    """Training data → (kernel → Γ → Gram layer) × num_layers → SpatialPool → kernel → output.

    One recursion for images and for rows, which are images of one pixel. Like an exact Gaussian
    process it owns its training data, and it has their dtype and device. The output is integrated
    out in closed form (``ExactGP``), but for the categorical one: it has q(f_c) = N(μ_c, A).

    Args:
        x: training data, floating point, with the axes that the class names.
        y: targets [P, C] of a Gaussian likelihood, in their own units; or class numbers [P].
        config: the settings.
    """

    axes: ClassVar[tuple[str, ...]]
    train_inputs: Tensor
    train_targets: Tensor
    initialised: Tensor

    def __init__(self, x: Tensor, y: Tensor, config: FullRankConfig) -> None:
        super().__init__()
        C = check_training_data(x, y, self.axes, config)
        P, space = len(x), (x.shape[2], x.shape[3]) if len(self.axes) == 4 else None
        self.config = config
        self.num_outputs = C
        self.log_lengthscales = log_lengthscales(config.lengthscales, x.shape[1])
        layers: dict[str, FullRankLayer] = {}
        for number, conv in enumerate(config.convolutions(space), start=1):
            space = None if conv is None else conv.output_space
            gram = config.build_gram(P * num_pixels(space))
            layers[f"layer{number}"] = FullRankLayer(
                config.build_kernel(), conv, gram, config.relative
            )
        self.num_pixels = num_pixels(space)  # that are pooled
        self.layers = nn.ModuleDict(layers)
        self.kernel = config.build_kernel()
        variational = config.likelihood == "categorical"
        self.output = config.build_output(P, C) if variational else None
        self.likelihood = config.build_likelihood(C)
        start_in_(self, x.dtype)
        self.to(x.device)
        self.register_buffer("train_inputs", x.detach().clone())
        self.register_buffer("train_targets", y.detach().clone())
        self.register_buffer("initialised", torch.tensor(False, device=x.device))

    def objective(self, noise: Float[Tensor, "S P C"] | None = None) -> FullRankTerms:
        """Return the objective at the present parameters: all training data, no batches.

        Args:
            noise: ``draw_samples(generator)``, needed by the categorical likelihood only.
        """
        chain, y = self.inducing_chain(), self.train_targets
        kl = {f"{n}.gram": layer.kl(chain.layers[n]) for n, layer in self._named_layers()}
        with within("output"):
            if self.output is None:
                log_lik = self._exact_gp(chain).log_evidence / len(y)
                if isinstance(self.likelihood, Gaussian):
                    log_lik = log_lik - self.likelihood.log_unit()
                return FullRankTerms(log_lik, kl, len(y))
            if noise is None:
                raise ValueError(
                    "the categorical likelihood needs noise: pass model.draw_samples(generator)"
                )
            state = self.output.inducing(chain.top_ii)
            kl["output"] = self.output.kl(chain.top_ii, state)
        q = self.output.at_inducing(state)
        return FullRankTerms(self.likelihood.expected_log_prob(q, y, noise).mean(), kl, len(y))

    @property
    def data_shape(self) -> tuple[int, ...]:
        """Shape of one data point."""
        return tuple(self.train_inputs.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the model, which data must have too."""
        return self.train_inputs.dtype

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.train_inputs.device

    def check_data(self, x: Tensor) -> None:
        """Raise unless ``x`` is a batch for this model: shape, dtype, finite."""
        check_features(x, ("batch", *self.data_shape), self.dtype, self.axes[0])

    @torch.no_grad()
    def for_prediction(self) -> Callable[[Tensor], Marginals]:
        """Data → q(f), with the parameters as they are now, worked out once.

        That costs about as much as a third of an iteration of training. Of images, as many are
        handled at once as there are in training, so that they need less memory than training did.
        """
        chain = self.inducing_chain()
        output = self._output_at(chain)
        at_once = max(len(self.train_inputs), 256 // self.train_inputs[0, 0].numel())

        @torch.no_grad()
        def predict(x: Tensor) -> Marginals:
            parts = [self._data(part, chain, output) for part in x.split(at_once)]
            return Marginals(torch.cat([q.mean for q in parts]), torch.cat([q.var for q in parts]))

        return predict

    def predict(self, x: Tensor) -> Marginals:
        """q(f) of new data, with gradients. Memory grows with their number, B·S·N."""
        chain = self.inducing_chain()
        return self._data(x, chain, self._output_at(chain))

    def _output_at(self, chain: FullRankChain) -> Callable[[GramBlocks], Marginals]:
        """The output layer, given the training points."""
        with within("output"):
            if self.output is None:
                gp, check = self._exact_gp(chain), self.config.variance_check
                return lambda K: gp.data(K, check)
            output, state = self.output, self.output.inducing(chain.top_ii)
            return lambda K: output.data(K, state)

    def _data(
        self, x: Tensor, chain: FullRankChain, output: Callable[[GramBlocks], Marginals]
    ) -> Marginals:
        self.check_data(x)
        G = self.first_gram(x, chain)
        for name, layer in self._named_layers():
            with within(name):
                G = layer.data(G, chain.layers[name])
        K = self.kernel.data(pool_data(G, chain.pooled_ii), chain.top_ii)
        with within("output"):
            return output(K)

    def first_gram(self, x: Tensor, chain: FullRankChain) -> FullBlocks:
        """G⁰: dot products of points, divided by the number of their features."""
        T, X = self._points(x), self._points(self.train_inputs).flatten(0, 1)
        N = X.shape[1]
        return FullBlocks(chain.input_ii, T @ X.mT / N, T @ T.mT / N)

    def inducing_chain(self) -> FullRankChain:
        """The training points through all layers."""
        if not self.initialised:
            raise RuntimeError(
                "the model has no start values yet: call model.initialise_() or load a state dict"
            )
        ii = input_ii = self._input_gram()
        states: dict[str, FullRankState] = {}
        for name, layer in self._named_layers():
            with within(name):
                states[name] = layer.inducing(ii)
            ii = states[name].ii
        pooled_ii = pool_inducing(ii, self.num_pixels)
        return FullRankChain(input_ii, states, pooled_ii, self.kernel.inducing(pooled_ii))

    def gram_matrices(self) -> dict[str, Float[Tensor, "_ _"]]:
        """G of the training points: ``input``, and each layer by name."""
        chain = self.inducing_chain()
        return {"input": chain.input_ii, **{name: state.ii for name, state in chain.layers.items()}}

    def top_kernel(self) -> Float[Tensor, "P P"]:
        """K(SpatialPool(G^L)): the prior covariance of the outputs."""
        return self.inducing_chain().top_ii

    def draw_samples(self, generator: torch.Generator) -> Float[Tensor, "S #P C"]:
        """Fresh Monte-Carlo noise for ``objective``."""
        shape = (len(self.train_inputs), self.num_outputs)
        noise = draw_noise(self.likelihood.num_samples, shape, generator, self.dtype)
        return noise.to(self.device)

    @torch.no_grad()
    def initialise_(self, grams: Mapping[str, Tensor] | None = None) -> None:
        """Start each G, and A, at the kernel it meets, and μ at 0: the NNGP. Nothing is random.

        Args:
            grams: start values for the G of some layers, by name; not of a model with ν = ∞.
        """
        grams = grams or {}
        known = set(self.layers) if self.config.nu < math.inf else set()
        if not known.issuperset(grams):
            raise ValueError(f"grams may be given for {sorted(known)}, got {sorted(grams)}")
        ii = self._input_gram()
        for name, layer in self._named_layers():
            with within(name):
                ii = layer.start_gram_(ii, grams.get(name))
        if self.output is not None:
            K_ii = self.kernel.inducing(pool_inducing(ii, self.num_pixels))
            with within("output"):
                self.output.start_at_prior_(K_ii)
        self.initialised.fill_(True)

    def _input_gram(self) -> Float[Tensor, "N N"]:
        X = self._points(self.train_inputs).flatten(0, 1)
        return X @ X.mT / X.shape[1]

    def _points(self, x: Tensor) -> Float[Tensor, "B S N"]:
        """Pixel by pixel, where a row is one pixel; divided by the lengthscales."""
        points = x.flatten(2).mT if x.ndim > 2 else x[:, None]
        return divided_by_lengthscales(points, self.log_lengthscales)

    def _exact_gp(self, chain: FullRankChain) -> ExactGP:
        y, likelihood = self.train_targets, self.likelihood
        if isinstance(likelihood, Gaussian):
            z = likelihood.scaled(y, self.train_inputs)
            return ExactGP.condition(chain.top_ii, z, likelihood.noise_var)
        alpha, C = self.config.alpha, self.num_outputs
        return ExactGP.condition(chain.top_ii, *dirichlet_targets(y, C, alpha, self.dtype))

    def _named_layers(self) -> Iterator[tuple[str, FullRankLayer]]:
        for name, layer in self.layers.items():
            assert isinstance(layer, FullRankLayer)
            yield name, layer


class FullRankDKM(FullRankModel):
    """For rows x [P, features]: G⁰ = X Xᵀ / features (Eq. dkm_obfr).

    Example:
        >>> import torch
        >>> from gramian import FullRankConfig, FullRankDKM
        >>> x = torch.linspace(-1, 1, 10, dtype=torch.float64)[:, None]
        >>> model = FullRankDKM(x, x.sin(), FullRankConfig(num_layers=2))
        >>> model.initialise_()
        >>> {name: tuple(G.shape) for name, G in model.gram_matrices().items()}
        {'input': (10, 10), 'layer1': (10, 10), 'layer2': (10, 10)}
    """

    axes = ("points", "features")


class FullRankConvDKM(FullRankModel):
    """For images x [P, channels, H, W]: G⁰ = X Xᵀ / channels between pixels (Eq. cdkm_fr_ob).

    Example:
        >>> import torch
        >>> from gramian import FullRankConfig, FullRankConvDKM
        >>> x = torch.eye(12, dtype=torch.float64).reshape(9, 1, 4, 4)
        >>> model = FullRankConvDKM(x, x.mean((2, 3)), FullRankConfig(strides=(2,)))
        >>> model.initialise_()
        >>> [len(G) for G in model.gram_matrices().values()]  # 9 · 16 pixels, then 9 · 4
        [144, 36]
    """

    axes = ("images", "channels", "height", "width")
