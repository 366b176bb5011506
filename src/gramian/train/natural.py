"""Natural gradients for the output's q(f_i): what makes small tables fit in a hundred steps.

Given the kernel, q(f_i) has a closed form for Gaussian targets, and Newton's method finds it for
classes; Adam needs thousands of steps for the same. In coordinates where K_ii is the identity,
with columns x_n of X = L_K⁻¹ K_it, mean m and precision Λ of q, a step of size ρ is

    Λ       ← (1 − ρ) Λ       + ρ (I + Σ_n w_n x_n x_nᵀ)
    m_c     ← m_c + ρ Λ_c⁻¹ (Σ_n g_nc x_n − m_c)

with g the derivative of E_q[log p(y|f)] by the mean of f, w_nc minus its second derivative, and w_n
its mean over the C outputs, because they share Λ. Where their noises differ, an output has its own
Λ_c = I + r_c (Λ − I), with r_c = Σ_n w_nc / Σ_n w_n. ρ = 1 is exact for Gaussian targets.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gramian.gram.blocks import GramBlocks, Marginals
from gramian.gram.errors import NumericalError, within
from gramian.gram.linalg import cholesky, solve_lower, solve_upper
from gramian.nn.contract import InducingChain
from gramian.nn.likelihoods import received
from gramian.nn.model import DKM
from gramian.train.step import Place, batch_indices
from gramian.train.trainer import Trainer

CHUNK = 4096  # data points handled at once in a step over all data


@torch.no_grad()
def natural_step_(
    model: DKM,
    batches: Iterable[tuple[Tensor, Tensor, Tensor | None]],
    num_data: int | float,
    rho: float,
    noise: Tensor,
) -> int:
    """One natural-gradient step of q(f_i), without SKR's sampling; nothing else changes.

    Returns how many variances were below 0 by rounding, and count as 0. A curvature w_n below
    0, where log p is not concave, counts as 0 too: the precision of q only grows by data.

    Args:
        model: with the objective's exact divergence and an output that is not tempered.
        batches: (x as the model sees it, y in its own units, weights of mean 1 or None), together a
            sample of the training set.
        num_data: size of the whole training set, or the sum of its weights.
        rho: step size, in (0, 1].
        noise: Monte-Carlo noise of the likelihood, [S, 1, C].
    """
    was_training = model.training
    model.eval()
    try:
        chain = model.inducing_chain({})
        L_K = chain.output.kernel_factor.double()
        m = solve_lower(L_K, model.output.q_mean.double())
        F = solve_lower(L_K, model.output.q_cov.factor.double())  # Λ⁻¹ = F Fᵀ
        eye = torch.eye(len(L_K), dtype=torch.float64, device=L_K.device)
        precision, slope, count, clamped = torch.zeros_like(L_K), torch.zeros_like(m), 0, 0
        curvature = L_K.new_zeros(())
        for x, y, weights in batches:
            K = _top(model, x, chain)
            X = solve_lower(L_K, K.ti.double().mT)
            var = K.tt_diag.double() - X.square().sum(0) + (X.mT @ F).square().sum(1)
            clamped += int((var < 0).sum())
            q = Marginals(X.mT @ m, var.clamp_min(0)[:, None])
            g, w = model.likelihood.derivatives(q, y, noise.double())
            w = w.reshape(len(y), -1)  # one for all outputs may be [B]
            if weights is not None:
                g, w = weights[:, None] * g, weights[:, None] * w
            precision += (X * w.mean(1).clamp_min(0)) @ X.mT
            slope += X @ g
            curvature = curvature + w.clamp_min(0).sum(0)
            count += len(y)
        F_inv = solve_lower(F, eye)
        old, weight = F_inv.mT @ F_inv, rho * num_data / count
        new = (1 - rho) * old + rho * eye + weight * precision
        with within("output"):
            L = cholesky(new, "the precision of q")
            slope = weight * slope - rho * m  # of the objective by m, times ρ: 0 at the optimum
            if curvature.min() == curvature.max():
                m = m + solve_upper(L, solve_lower(L, slope))
            else:
                r = curvature / curvature.mean()
                values, V = torch.linalg.eigh(new)  # Λ_c = V (1 + r_c (λ − 1)) Vᵀ
                m = m + V @ (V.mT @ slope / (1 + r * (values[:, None] - 1).clamp_min(0)))
            B = L_K @ solve_lower(L, eye).mT
            model.output.q_cov.set_to_(B @ B.mT, "the covariance of q")
        model.output.q_mean.copy_(L_K @ m)
        return clamped
    finally:
        model.train(was_training)


class NaturalTrainer(Trainer):
    """A trainer for dense models: natural gradients for q(f_i), Adam for all the rest."""

    def start(self, resume: bool) -> None:
        """Start q(f_i) near its optimum."""
        self.model.output.requires_grad_(False)  # before processes agree on who sends what
        super().start(resume)
        if not self.resumed:
            self._refine()

    def train_step(self) -> None:
        """One step of Adam, then one of the natural gradient on the same batch."""
        place = Place(self.config.seed, self.step, self.attempt)
        indices = batch_indices(len(self.task.train), self.batch_size, place)
        super().train_step()
        try:
            self._natural_step([indices], 1.0 if len(indices) == len(self.task.train) else 0.1)
        except NumericalError as error:
            self.numerical_error(error)

    def rehearse(self) -> None:
        """Both halves of a step; q(f_i) is put back."""
        super().rehearse()
        output = self.predictor.dkm.output
        before = {name: value.clone() for name, value in output.state_dict().items()}
        place = Place(self.config.seed, self.step, self.attempt)
        try:
            self._move([batch_indices(len(self.task.train), self.batch_size, place)], 0.1)
        finally:
            output.load_state_dict(before)

    def complete(self) -> None:
        """Bring q(f_i) to its optimum."""
        self._refine()

    def _refine(self) -> None:
        """Steps over all data: where a full step is exact, one is enough."""
        everything = torch.arange(len(self.task.train))
        for _ in range(1 if self.model.likelihood.full_step else 5):
            self._natural_step(everything.split(CHUNK), 1.0)

    def _natural_step(self, parts: Iterable[Tensor], rho: float) -> None:
        self.measured = {}  # the model is another one from here on
        clamped = self._move(parts, rho)
        if self.sums:  # an epoch is under way
            self.sums["clamped"] += clamped

    def _move(self, parts: Iterable[Tensor], rho: float) -> int:
        """A step of q(f_i) on some parts of the data; how many variances were clamped."""
        if not self.model.likelihood.full_step:
            rho /= 2  # a full Newton step can overshoot
        place = Place(self.config.seed, self.step, self.attempt)
        noise = self.model.draw_samples(1, place.draw("natural gradient", self.engine.device))
        batches = (self._batch(indices) for indices in parts)
        total = self.task.train.total_weight
        return natural_step_(self.predictor.dkm, batches, total, rho, noise)

    def _batch(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        train, device = self.task.train, self.engine.device
        x = self.task.scaler(train.x[indices], self.engine.dtype).to(device)
        weights = train.weights_at(indices, torch.float64, device)
        return x, received(train.y[indices], device), weights


def _top(model: DKM, x: Tensor, chain: InducingChain) -> GramBlocks:
    """The blocks that the output layer meets."""
    gram = model.first_gram(x, chain)
    for name, state in chain.layers.items():
        gram, _ = model.layers[name].data(gram, state)  # type: ignore[operator]
    K, _ = model.top(gram, chain)
    return K
