"""The sine toy in training, one curve of a figure: condition numbers of its learned Gram matrix.

All draws of a curve come from one generator, in the order of the published script, so that the
published numbers come out again:

    seed = data_seed   the data (``sine``): 100 rows are inducing points, 256 to train on
    seed = 1           normals [P, P] for the output's first covariance
                       an order of the data and normals [S, 256, 2], of the pass that starts G_ii
    each epoch         an order; SKR's normals [P, γ]; normals [S, 256, 2]; a step of Adam;
                       normals [S, 178, 2] of a pass over the test set, which has no other effect
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot

from gramian.gram.blocks import Marginals
from gramian.gram.errors import NonFiniteError
from gramian.gram.linalg import condition_number
from gramian.gram.skr import SKR
from gramian.nn.dense_dkm import DenseDKM, DenseDKMConfig
from gramian.nn.layers import grams_of
from gramian.nn.likelihoods import Categorical
from gramian.train.data.embedded import sine
from gramian.train.objective import objective
from paper.conditions.sweep import Curve

NUM_INDUCING = 100
NUM_SAMPLES = 100  # S
MODEL_SEED = 1
LEARNING_RATE = 0.01
BETAS = (0.8, 0.9)


class TwoClasses(Categorical):
    """The categorical likelihood of two classes, in a quarter of the time.

    log softmax(f)_y = log σ(f_y − f_{1−y}), with the outputs' difference sampled in one go.
    """

    def expected_log_prob(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> Float[Tensor, " B"]:
        """E_q[log σ(f_y − f_{1−y})]."""
        sign = 2 * y - 1
        mean, std = sign * (q.mean[:, 1] - q.mean[:, 0]), sign * q.var[:, 0].sqrt()
        return logsigmoid(torch.addcmul(mean, noise[..., 1] - noise[..., 0], std)).mean(0)


class Toy:
    """The toy of one curve in training: one Gram layer, squared exponential kernel, float64.

    ``conditions`` are the condition numbers of G_ii, without noise and jitter, after each epoch.
    """

    def __init__(self, curve: Curve) -> None:
        self.curve = curve
        splits, P = sine(curve.data_seed), NUM_INDUCING
        self.x, self.y = splits.train.x[P:], splits.train.y[P:]
        self.test_draws = (NUM_SAMPLES, len(splits.test.y), 2)
        self.generator = torch.Generator().manual_seed(MODEL_SEED)
        self.model = build_model(curve)
        self._start(splits.train.x[:P], splits.train.y[:P])
        self.adam = torch.optim.Adam(self.model.parameters(), LEARNING_RATE, BETAS)
        self.conditions: list[float] = []
        self.seconds = 0.0

    @torch.no_grad()
    def _start(self, x: Float[Tensor, "P N"], y: Int[Tensor, " P"]) -> None:
        """Inducing points and their classes are data; G_ii starts at the kernel it meets."""
        model, P = self.model, len(x)
        model.inputs.set_inducing_(x)
        model.output.q_mean.copy_(one_hot(y, 2))
        W = torch.randn(P, P, generator=self.generator, dtype=torch.float64)
        model.output.q_cov.set_to_(W @ W.mT / P + 1e-4 * torch.eye(P, dtype=torch.float64))
        model.eval().start_grams_({})
        model.initialised.fill_(True)
        self._order()
        model.draw_samples(len(self.x), self.generator)
        model.train()

    def train_epoch(self) -> None:
        """One step of Adam on all training points."""
        started = time.perf_counter()
        order = self._order()
        x, y = self.x[order], self.y[order]
        skr_noise = self.model.draw_noise(self.generator)
        noise = self.model.draw_samples(len(x), self.generator)
        terms = objective(self.model(x, skr_noise), self.model.likelihood, y, noise, len(x))
        self.adam.zero_grad()
        terms.loss.backward()
        self.adam.step()
        # A normal takes as much from the generator as a uniform number, and four times the time.
        torch.rand(self.test_draws, generator=self.generator, dtype=torch.float64)
        self.conditions.append(self._condition())
        self.seconds += time.perf_counter() - started

    def _order(self) -> Int[Tensor, " B"]:
        """What a DataLoader that shuffles takes: a seed for workers and one for the shuffling."""
        seeds = [torch.empty((), dtype=torch.int64) for _ in range(2)]
        _, seed = (int(empty.random_(generator=self.generator)) for empty in seeds)
        return torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed))

    def _condition(self) -> float:
        (gram,) = grams_of(self.model).values()
        assert gram.inducing_gram is not None
        G_ii = gram.inducing_gram.matrix.detach()
        value = condition_number(G_ii) if G_ii.isfinite().all() else math.nan
        if not math.isfinite(value):
            raise NonFiniteError("the condition number of G_ii")
        return value


def build_model(curve: Curve) -> DenseDKM:
    """The published toy. Its output layer has the Taylor KL, whatever the Gram layer has."""
    config = DenseDKMConfig(
        num_features=2,
        num_outputs=2,
        num_inducing=NUM_INDUCING,
        weight_var=None,
        bias_var=None,
        nu=curve.nu,
        divergence=curve.divergence,
        skr=SKR.off() if curve.gamma is None else SKR(curve.gamma / NUM_INDUCING),
    )
    model = DenseDKM.from_config(config).double()
    model.output.divergence = "taylor"
    model.likelihood = TwoClasses(2, NUM_SAMPLES, "monte_carlo")
    return model


def config_of(curve: Curve) -> dict[str, Any]:
    """All settings that the numbers of a curve depend on."""
    settings = asdict(curve)
    return {name: settings[name] for name in ("gamma", "nu", "divergence", "data_seed")} | {
        "num_inducing": NUM_INDUCING,
        "num_samples": NUM_SAMPLES,
        "model_seed": MODEL_SEED,
        "learning_rate": LEARNING_RATE,
        "betas": list(BETAS),
    }
