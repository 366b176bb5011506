"""Training of models without inducing points: L-BFGS on all data at once."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gramian.gram.errors import NumericalError
from gramian.nn.full_rank.full_rank_dkm import FullRankModel
from gramian.train.cost.full_rank_cost import PAIRS

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Search:
    """How a search went."""

    objectives: list[float]  # at the start, and after each iteration
    converged: bool
    message: str
    at_limit: bool = False  # there were more steps to take; if neither, none could be found

    @property
    def remedy(self) -> str:
        """What to change if it has not converged."""
        if self.at_limit:
            return "raise max_iter or tol"
        return (
            "no step raises the objective any more, and more iterations would not help; the best "
            "values found are kept. A larger tol ends the search sooner"
        )


def maximise_(
    model: FullRankModel,
    noise: Tensor | None = None,
    *,
    max_iter: int = 200,
    tol: float = 1e-7,
    on_iteration: Callable[[int, float], None] | None = None,
) -> Search:
    """Move the parameters that require a gradient to where the objective is largest.

    Args:
        model: started, see ``initialise_``.
        noise: ``model.draw_samples(generator)``, for the categorical likelihood only: the objective
            must be the same function at every call.
        max_iter: most iterations; an iteration is one evaluation, seldom a few.
        tol: stop when an iteration raises the objective by less, relative to it if it is above 1.
        on_iteration: called with the number of the iteration and the objective.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    return search_(
        parameters,
        lambda: model.objective(noise).total,
        max_iter=max_iter,
        tol=tol,
        on_iteration=on_iteration,
    )


def search_(
    parameters: Sequence[nn.Parameter],
    objective: Callable[[], Tensor],
    *,
    max_iter: int,
    tol: float,
    on_iteration: Callable[[int, float], None] | None = None,
) -> Search:
    """L-BFGS for any objective of any parameters.

    A trial step to where the objective raises NumericalError or FloatingPointError, or is not
    finite, counts as bad and is shortened. Whatever ends the search (Ctrl-C, an error), the
    parameters are left at the best values that were found.
    """
    if not parameters:
        raise ValueError("nothing to train: no parameter requires a gradient")
    best, lowest, worst = parameters_to_vector(parameters).detach().clone(), np.inf, -np.inf
    objectives: list[float] = []

    def loss(vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        nonlocal best, lowest, worst
        point = torch.from_numpy(vector).to(best)
        vector_to_parameters(point, parameters)
        for parameter in parameters:
            parameter.grad = None
        try:
            value = -objective()
            value.backward()
            gradient = parameters_to_vector([_gradient(p) for p in parameters]).double().cpu()
            if not (value.isfinite() and gradient.isfinite().all()):
                raise FloatingPointError(
                    f"objective {-value.item()}, or its gradient, is not finite"
                )
        except (NumericalError, FloatingPointError) as error:
            if not objectives:
                raise
            log.debug("a trial step was too long: %s", error)
            return worst + 1.0, np.zeros_like(vector)
        result = value.item()
        worst = max(worst, result)
        if result < lowest:
            best, lowest = point.clone(), result
        if not objectives:
            objectives.append(-result)
        return result, gradient.numpy()

    def after(_: NDArray[np.float64]) -> None:
        objectives.append(-lowest)
        if on_iteration is not None:
            on_iteration(len(objectives) - 1, -lowest)

    try:
        found = minimize(
            loss,
            best.double().cpu().numpy(),
            jac=True,
            method="L-BFGS-B",
            callback=after,
            options={"maxiter": max_iter, "maxcor": PAIRS, "ftol": tol, "gtol": 1e-9},
        )
    finally:
        vector_to_parameters(best, parameters)
        for parameter in parameters:
            parameter.grad = None
    at_limit = found.status == 1  # iterations or evaluations; 2 is a line search that failed
    return Search(objectives, bool(found.success), str(found.message), at_limit)


def maximise_from_nngp_(
    model: FullRankModel,
    noise: Tensor | None = None,
    *,
    max_iter: int = 200,
    tol: float = 1e-7,
    on_iteration: Callable[[int, float], None] | None = None,
) -> Search:
    """Search in stages: the NNGP, which is the same model with ν = ∞, then the model from there.

    Cheap, because nothing of the NNGP is learned but its kernels, and from there the objective can
    only rise. The q of classes comes first, with the kernels fixed: from q = prior, with all at
    once, the kernels tend to explain nothing. The arguments are those of ``maximise_``; each stage
    may have ``max_iter`` iterations, and the result tells of all.
    """
    config = replace(model.config, nu=math.inf)
    nngp = type(model)(model.train_inputs, model.train_targets, config)
    common = nngp.state_dict().keys()
    nngp.load_state_dict({name: model.state_dict()[name] for name in common})
    nngp.initialise_()
    for name, parameter in nngp.named_parameters():
        parameter.requires_grad_(model.get_parameter(name).requires_grad)
    found = Search([], True, "no parameter requires a gradient")

    def search(part: FullRankModel) -> None:
        nonlocal found
        so_far = found.objectives
        if not any(parameter.requires_grad for parameter in part.parameters()):
            return

        def show(iteration: int, objective: float) -> None:
            if on_iteration is not None:
                on_iteration(max(0, len(so_far) - 1) + iteration, objective)

        result = maximise_(part, noise, max_iter=max_iter, tol=tol, on_iteration=show)
        objectives = [*so_far, *result.objectives[bool(so_far) :]]
        found = replace(result, objectives=objectives)

    try:
        if nngp.output is not None:
            others = _free_parameters(nngp, without=nngp.output)
            _set_free(others, False)
            search(nngp)
            _set_free(others, True)
        search(nngp)
    finally:
        model.load_state_dict(nngp.state_dict(), strict=False)
        if model.config.nu < math.inf:
            model.initialise_()
            if model.output is not None and nngp.output is not None:
                model.output.load_state_dict(nngp.output.state_dict())
    if model.config.nu < math.inf:
        search(model)
    return found


def _free_parameters(model: nn.Module, without: nn.Module) -> list[nn.Parameter]:
    """Parameters that require a gradient, but for those of a part."""
    part = set(without.parameters())
    return [p for p in model.parameters() if p.requires_grad and p not in part]


def _set_free(parameters: Sequence[nn.Parameter], free: bool) -> None:
    for parameter in parameters:
        parameter.requires_grad_(free)


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
