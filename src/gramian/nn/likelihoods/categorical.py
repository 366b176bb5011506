"""Classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from gramian.gram.blocks import Marginals
from gramian.nn.checks import check_labels
from gramian.nn.likelihoods.likelihood import Likelihood, Named, sample
from gramian.nn.likelihoods.metric_sums import ClassificationMetrics, Metrics

PORTION = 2**17
"""Numbers among the S·B·C samples of the logits that exist at one time, but at least one row's."""


class Categorical(Likelihood):
    """p(y | f) = softmax(f)_y, for class numbers y [B].

    ``estimator``: E[log softmax(f)_y] = mean_y − E[logsumexp f]. ``exact`` takes the first part
    exactly and samples only the second; ``monte_carlo`` samples both, as published.

    Example:
        >>> import torch
        >>> from gramian import Categorical, Marginals
        >>> likelihood, noise = Categorical(2), torch.tensor([[[-1.0, 0.0]], [[1.0, 0.0]]])
        >>> for var in (0.0, 9.0):  # the less is known of f, the nearer to ½
        ...     q = Marginals(torch.tensor([[2.0, 0.0]]), torch.tensor([[var]]))
        ...     print(likelihood.predict(q, noise)["probabilities"])
        tensor([[0.8808, 0.1192]])
        tensor([[0.6311, 0.3689]])
    """

    targets = "classes"
    fewest_outputs = 2

    def check(self, y: Tensor, batch: int) -> None:
        """Raise unless ``y`` are class numbers."""
        check_labels(y, self.num_outputs, batch)

    def expected_log_prob(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> Float[Tensor, " B"]:
        """E_q[log softmax(f)_y]."""
        self.check(y, len(q.mean))
        linear = q.mean if self.estimator == "exact" else sample(q, noise.mean(0, keepdim=True))[0]
        return linear.gather(1, y[:, None])[:, 0] - mean_logsumexp(q, noise)

    def log_marginal(
        self,
        q: Marginals,
        y: Tensor,
        noise: Float[Tensor, "S #B C"],
        clip: bool = False,
    ) -> Float[Tensor, " B"]:
        """Return log E_q[softmax(f)_y].

        ``clip``: keep the probability in [ε, 1 − ε] of its dtype, as the published metrics do: in
        float32 no image then counts less than −15.94.
        """
        self.check(y, len(q.mean))
        if clip:
            eps = torch.finfo(q.mean.dtype).eps
            p = self.predict(q, noise)["probabilities"].gather(1, y[:, None])[:, 0]
            return p.clamp(eps, 1 - eps).log()

        def log_mean(f: Tensor, _: Tensor, labels: Tensor) -> Tensor:
            log_p = f[:, torch.arange(len(labels)), labels] - f.logsumexp(-1)
            return log_p.logsumexp(0) - math.log(len(f))

        return by_rows(log_mean, q, noise, y)

    def predict(self, q: Marginals, noise: Float[Tensor, "S #B C"]) -> Named:
        """``probabilities`` E_q[softmax(f)] of the classes."""
        return {"probabilities": by_rows(lambda f, _: softmax(f).mean(0), q, noise)}

    def derivatives(
        self, q: Marginals, y: Tensor, noise: Float[Tensor, "S #B C"]
    ) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B 1"]]:
        """E_q[onehot(y) − p] and E_q[mean_c p_c (1 − p_c)], with noise of both signs."""

        def means(f: Tensor, _: Tensor) -> Tensor:
            p = softmax(f)
            mean = p.mean(0)
            return torch.cat([mean, (mean - p.square().mean(0)).mean(1, keepdim=True)], dim=1)

        found = by_rows(means, q, torch.cat([noise, -noise]))
        target = torch.nn.functional.one_hot(y, self.num_outputs)
        return target - found[:, :-1], found[:, -1:]

    def hits(self, q: Marginals, y: Tensor) -> Bool[Tensor, " B"]:
        """Whether the class of the largest mean is the right one."""
        return q.mean.argmax(1) == y

    def mutual_information(
        self, q: Marginals, noise: Float[Tensor, "S #B C"]
    ) -> Float[Tensor, " B"]:
        """H[E_q p] − E_q H[p] with p = softmax(f), over the samples."""

        def information(f: Tensor, _: Tensor) -> Tensor:
            p = softmax(f)
            whole = torch.special.entr(p.mean(0)).sum(-1)
            return whole - torch.special.entr(p).sum(-1).mean(0)

        return by_rows(information, q, noise)

    def metrics(self) -> ClassificationMetrics:
        """Accuracy, log-likelihood, calibration, Brier score and entropy."""
        return ClassificationMetrics(self.num_outputs)

    def add_to_(
        self,
        metrics: Metrics,
        q: Marginals,
        y: Tensor,
        noise: Float[Tensor, "S #B C"],
        weights: Float[Tensor, " B"] | None = None,
    ) -> None:
        """Add a batch."""
        assert isinstance(metrics, ClassificationMetrics)
        metrics.update(
            self.predict(q, noise)["probabilities"],
            y,
            self.log_marginal(q, y, noise),
            self.log_marginal(q, y, noise, clip=True),
            weights,
        )


def softmax(f: Float[Tensor, "S B C"]) -> Float[Tensor, "S B C"]:
    """exp(f − logsumexp f): several times quicker than PyTorch's, where there are few classes."""
    return (f - f.logsumexp(-1, keepdim=True)).exp()


def by_rows(
    function: Callable[..., Tensor],
    q: Marginals,
    noise: Float[Tensor, "S #B C"],
    *others: Tensor,
) -> Tensor:
    """Give ``function`` f ~ q [S, b, C], its noise and rows of ``others``, by portions of b rows.

    The results are written into one tensor: many small ones would lie between the large ones that
    are freed, and the C library could not use their places again.
    """
    rows = max(1, PORTION // (len(noise) * q.mean.shape[1]))
    if torch.compiler.is_exporting() or len(q.mean) <= rows:
        return function(sample(q, noise), noise, *others)
    found: Tensor | None = None
    for start in range(0, len(q.mean), rows):
        part = slice(start, start + rows)
        z = noise if noise.shape[1] == 1 else noise[:, part]
        f = sample(Marginals(q.mean[part], q.var[part]), z)
        value = function(f, z, *(other[part] for other in others))
        if found is None:
            found = value.new_empty(len(q.mean), *value.shape[1:])
        found[part] = value
    assert found is not None
    return found


def mean_logsumexp(q: Marginals, noise: Float[Tensor, "S #B C"]) -> Float[Tensor, " B"]:
    """E_q[logsumexp f], which keeps two numbers for each mean, and no sample, to go backward."""
    value: Tensor = _MeanLogSumExp.apply(q.mean, q.var, noise)  # type: ignore[no-untyped-call]
    return value


class _MeanLogSumExp(torch.autograd.Function):
    """With p = softmax(f), the gradient by the mean is E[p], and by √var it is E[p ∘ noise]."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, noise: Tensor) -> Tensor:
        C = mean.shape[1]
        gradients = any(ctx.needs_input_grad)

        def means(f: Tensor, z: Tensor) -> Tensor:
            normaliser = f.logsumexp(-1, keepdim=True)
            if not gradients:
                return normaliser.mean(0)
            mean_p = f.sub_(normaliser).exp_().mean(0)
            return torch.cat([normaliser.mean(0), mean_p, f.mul_(z).mean(0)], dim=1)

        found = by_rows(means, Marginals(mean, var), noise)
        if gradients:
            ctx.save_for_backward(found[:, 1 : C + 1], found[:, C + 1 :], var)
        return found[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        by_mean, by_deviation, var = ctx.saved_tensors
        by_var = by_deviation.sum_to_size(by_deviation.shape[0], var.shape[1]) / (2 * var.sqrt())
        return grad[:, None] * by_mean, grad[:, None] * by_var.where(var > 0, 0.0), None
