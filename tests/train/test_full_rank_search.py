"""L-BFGS for models without inducing points."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from gramian import FullRankConfig, FullRankDKM, NotPSDError, deep_linear_optimum
from gramian.nn.steps.kernels import Jitter
from gramian.train.lbfgs import maximise_, maximise_from_nngp_, search_
from tests.samples import generator

CONFIG = FullRankConfig(
    kernel="squared_exponential", nu=3.0, lengthscales="per_feature", num_samples=20
)
LINEAR = FullRankConfig(
    kernel="linear",
    num_layers=2,
    nu=2.0,
    weight_var=None,
    bias_var=None,
    kernel_jitter=Jitter(0.0, 0.0),
    noise_var=1e-13,
)


def rows(n=12, features=2, seed=0):
    return torch.randn(n, features, generator=generator(seed), dtype=torch.float64)


def build(likelihood="gaussian", dtype=torch.float64, **changes):
    """A started model, and the noise of its objective."""
    x = rows()
    y = x.sin().sum(1, keepdim=True) + 0.1 * rows(12, 1, seed=1)
    targets = y.to(dtype) if likelihood == "gaussian" else (y[:, 0] > 0).long()
    model = FullRankDKM(x.to(dtype), targets, replace(CONFIG, likelihood=likelihood, **changes))
    model.initialise_()
    return model, model.draw_samples(generator(2)) if likelihood == "categorical" else None


def interrupted(model, call, outcome):
    """Let the model's objective do ``outcome`` instead, at its n-th call."""
    usual, calls = model.objective, []

    def objective(noise=None):
        calls.append(1)
        terms = usual(noise)
        return outcome(terms) if len(calls) == call else terms

    model.objective = objective
    return calls


def no_factor(terms):
    raise NotPSDError("K_ii", "float64", 12, 3, -1e-9)


def not_a_number(terms):
    return replace(terms, log_lik=terms.log_lik * math.nan)


kinds = pytest.mark.parametrize("likelihood", ["gaussian", "dirichlet", "categorical"])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def linear(seed):
    """A deep linear model at a random start, and the optimum."""
    x, y = rows(3, 8), 3 * rows(3, 5, seed=1)
    model = FullRankDKM(x, y, LINEAR)
    model.initialise_()
    model.likelihood.log_noise_var.requires_grad_(False)
    for parameter in model.layers.parameters():
        parameter.data.normal_(generator=generator(seed))
    G = model.gram_matrices()["input"]
    return model, deep_linear_optimum(G, y, LINEAR.nu, LINEAR.num_layers)


def assert_at(optimum, model):
    for found, expected in zip(list(model.gram_matrices().values())[1:], optimum, strict=True):
        torch.testing.assert_close(found.detach(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_search_reaches_a_known_optimum(seed):
    model, optimum = linear(seed)
    start = model.objective().total.item()
    search = maximise_(model, max_iter=500, tol=1e-15)
    assert search.objectives[0] == start
    assert search.objectives[-1] == model.objective().total.item()
    assert search.converged
    assert_at(optimum, model)


@kinds
@dtypes
def test_objectives_never_fall_and_the_model_is_at_the_last(likelihood, dtype):
    model, noise = build(likelihood, dtype, kernel_jitter=Jitter(1e-4, 1e-4))
    told = []
    search = maximise_(model, noise, max_iter=8, on_iteration=lambda *row: told.append(row))
    assert len(search.objectives) > 3
    assert (np.diff(search.objectives) >= 0).all()
    assert search.objectives[-1] > search.objectives[0] + 0.01
    assert told == list(enumerate(search.objectives))[1:]
    assert model.objective(noise).total.item() == search.objectives[-1]
    assert all(p.grad is None and p.dtype == dtype for p in model.parameters())


@pytest.mark.parametrize("outcome", [no_factor, not_a_number])
@pytest.mark.parametrize("call", [2, 5])
def test_a_step_into_the_void_is_survived(outcome, call):
    model, optimum = linear(0)
    calls = interrupted(model, call, outcome)
    maximise_(model, max_iter=500, tol=1e-15)
    assert len(calls) > call + 5
    assert_at(optimum, model)


@pytest.mark.parametrize(
    ("outcome", "error"), [(no_factor, NotPSDError), (not_a_number, FloatingPointError)]
)
def test_an_error_at_the_start_is_raised(outcome, error):
    model, _ = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    interrupted(model, 1, outcome)
    with pytest.raises(error):
        maximise_(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_ctrl_c_leaves_the_best_parameters():
    model, _ = build()
    told = []

    def press(iteration, objective):
        told.append(objective)
        if iteration == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        maximise_(model, on_iteration=press)
    assert len(told) == 3
    assert model.objective().total.item() == told[-1]


def test_nothing_to_train():
    model, _ = build()
    with pytest.raises(ValueError, match="nothing to train"):
        maximise_(model.requires_grad_(False))


def test_too_few_iterations_are_told():
    search = maximise_(build()[0], max_iter=2)
    assert not search.converged
    assert "LIMIT" in search.message
    assert search.at_limit
    assert search.remedy == "raise max_iter or tol"
    assert len(search.objectives) == 3


def test_a_search_that_finds_no_step_does_not_ask_for_more_iterations():
    parameter = torch.nn.Parameter(torch.ones(2))

    def wrong_way():  # the gradient points downhill: every step looks bad
        true = -parameter.square().sum()
        return 2 * true.detach() - true

    search = search_([parameter], wrong_way, max_iter=50, tol=1e-7)
    assert not search.converged
    assert not search.at_limit
    assert "more iterations would not help" in search.remedy
    assert torch.equal(parameter, torch.ones(2))


@kinds
@dtypes
def test_from_the_nngp_the_objective_only_rises(likelihood, dtype):
    jitter = Jitter(1e-4, 1e-4)
    nngp, noise = build(likelihood, dtype, nu=math.inf, kernel_jitter=jitter)
    first = maximise_from_nngp_(nngp, noise, max_iter=8)
    model, noise = build(likelihood, dtype, kernel_jitter=jitter)
    told = []
    search = maximise_from_nngp_(
        model, noise, max_iter=8, on_iteration=lambda *row: told.append(row)
    )
    n = len(first.objectives)
    assert search.objectives[:n] == first.objectives
    assert (np.diff(search.objectives) >= -1e-6).all()
    assert search.objectives[-1] > first.objectives[-1] + 1e-4
    assert told == list(enumerate(search.objectives))[1:]
    assert model.objective(noise).total.item() == search.objectives[-1]


def test_from_the_nngp_of_an_nngp_is_the_plain_search():
    plain, _ = build(nu=math.inf)
    other, _ = build(nu=math.inf)
    assert maximise_(plain, max_iter=8) == maximise_from_nngp_(other, max_iter=8)
    assert torch.equal(plain.predict(rows(3)).mean, other.predict(rows(3)).mean)


def test_what_is_frozen_stays_and_without_parameters_there_is_no_search_for_the_nngp():
    model, _ = build(weight_var=None, bias_var=None, lengthscales="one")
    model.log_lengthscales.requires_grad_(False)
    search = maximise_from_nngp_(model, max_iter=5)
    assert model.log_lengthscales.item() == 0.0
    assert model.likelihood.log_noise_var.item() != pytest.approx(math.log(CONFIG.noise_var))
    model.likelihood.log_noise_var.requires_grad_(False)
    again = maximise_from_nngp_(model, max_iter=5)
    assert len(search.objectives) > len(again.objectives) > 1
    assert np.all(np.diff(again.objectives) >= 0)


def test_ctrl_c_in_the_search_for_the_nngp_keeps_what_was_found():
    model, _ = build()
    start = model.objective().total.item()

    def stop(iteration, objective):
        if iteration == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        maximise_from_nngp_(model, on_iteration=stop)
    assert model.objective().total.item() > start
