"""One set of checks for every likelihood, then each against its formula."""

import copy
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from scipy.special import expit
from torch.func import functional_call

from gramian import Marginals
from gramian.nn.likelihoods import (
    AUTO,
    LIKELIHOODS,
    Categorical,
    Gaussian,
    Likelihood,
    LikelihoodConfig,
    PerTarget,
    Poisson,
    StudentT,
    build_likelihood,
    categorical,
    check_likelihood,
    draw_noise,
    even_points,
)
from gramian.nn.likelihoods import likelihood as likelihood_module
from gramian.nn.likelihoods.likelihood import sample
from gramian.nn.parameters import start_in_
from tests.samples import generator, random_

C = 3
LABELS = torch.tensor([0, 1, 2, 1, 0])
every_likelihood = pytest.mark.parametrize("name", LIKELIHOODS)
every_target = pytest.mark.parametrize("name", ["gaussian", "student_t", "poisson"])


def marginals(B=5, dtype=torch.float64, shared=True) -> Marginals:
    draw = generator(0)
    mean = torch.randn(B, C, generator=draw, dtype=torch.float64)
    var = torch.rand(B, 1 if shared else C, generator=draw, dtype=torch.float64) + 0.1
    return Marginals(mean.to(dtype), var.to(dtype))


def targets(name: str, B=5) -> torch.Tensor:
    """In their own units: years, lengths and so on."""
    draw = generator(7)
    if name == "categorical":
        return torch.randint(C, (B,), generator=draw)
    if name == "poisson":
        return torch.poisson(5 * torch.rand(B, C, generator=draw), generator=draw).long()
    units = torch.tensor([[2011.5, 0.0, -3.0]]), torch.tensor([[4.0, 1e-3, 1.0]])
    return (units[0] + units[1] * torch.randn(B, C, generator=draw)).double()


def build(name: str, dtype=torch.float64, **changes) -> Likelihood:
    likelihood = random_(LIKELIHOODS[name](C, **changes)).to(dtype)
    likelihood.fit_targets_(targets(name, 50))
    return likelihood


def noise(B=1, S=40, dtype=torch.float64) -> torch.Tensor:
    return draw_noise(S, (B, C), generator(1), dtype)


def answers(likelihood: Likelihood, q: Marginals, y: torch.Tensor, z: torch.Tensor):
    latent = likelihood.latent(q)
    return {
        "expected": likelihood.expected_log_prob(q, y, z),
        "marginal": likelihood.log_marginal(q, y, z),
        **dict(zip(("g", "w"), likelihood.derivatives(q, y, z), strict=True)),
        **likelihood.predict(q, z),
        "latent_mean": latent.mean,
        "latent_var": latent.var,
    }


# ---- all ----


def test_every_kind_of_targets_has_a_likelihood():
    assert {kind: LIKELIHOODS[name].targets for kind, name in AUTO.items()} == {
        kind: kind for kind in ("classes", "real", "counts")
    }


@every_likelihood
@pytest.mark.parametrize("estimator", ["exact", "monte_carlo"])
def test_shapes_and_dtypes(name, estimator):
    for dtype in (torch.float32, torch.float64):
        likelihood, q = build(name, dtype, estimator=estimator), marginals(dtype=dtype)
        found = answers(likelihood, q, targets(name), noise(dtype=dtype))
        assert {value.dtype for value in found.values()} == {dtype}
        assert found["expected"].shape == found["marginal"].shape == (5,)
        assert found["w"].shape == (5, 1 if name == "categorical" else C)
        assert found["g"].shape == found["latent_mean"].shape == (5, C)
        predicted = {"probabilities"} if name == "categorical" else {"mean", "variance"}
        assert {key for key in found if found[key].shape == (5, C)} >= predicted
        assert all(value.isfinite().all() for value in found.values())


@every_likelihood
def test_float32_is_close_to_float64(name):
    y = targets(name)
    exact = answers(build(name), marginals(), y, noise())
    single = answers(build(name, torch.float32), marginals(dtype=torch.float32), y, noise().float())
    for key, value in exact.items():
        torch.testing.assert_close(single[key].double(), value, rtol=2e-4, atol=2e-4, msg=key)


@every_likelihood
def test_state_dict_copy_and_pickle_are_bit_equal(name):
    likelihood, q, y, z = build(name), marginals(), targets(name), noise()
    fresh = LIKELIHOODS[name](C).double()
    fresh.load_state_dict(likelihood.state_dict())
    for other in (fresh, copy.deepcopy(likelihood), pickle.loads(pickle.dumps(likelihood))):
        for a, b in zip(
            answers(other, q, y, z).values(), answers(likelihood, q, y, z).values(), strict=True
        ):
            assert torch.equal(a, b)


@every_likelihood
def test_gradients_are_right_and_g_is_one_of_them(name):
    likelihood, y, z = build(name), targets(name), noise(S=5)
    names = [key for key, _ in likelihood.named_parameters()]

    def run(mean, var, *parameters):
        changed = dict(zip(names, parameters, strict=True))
        q = Marginals(mean, var)
        return functional_call(
            Expected(likelihood), {f"it.{k}": v for k, v in changed.items()}, q, {"y": y, "z": z}
        )

    q = marginals(shared=False)
    leaves = [q.mean, q.var, *(value.detach() for value in likelihood.parameters())]
    assert torch.autograd.gradcheck(run, [leaf.clone().requires_grad_() for leaf in leaves])
    mean = q.mean.clone().requires_grad_()
    both = torch.cat([z, -z])  # as the derivatives of classes have it
    (slope,) = torch.autograd.grad(
        likelihood.expected_log_prob(Marginals(mean, q.var), y, both).sum(), mean
    )
    torch.testing.assert_close(likelihood.derivatives(q, y, z)[0], slope)


class Expected(torch.nn.Module):
    def __init__(self, likelihood):
        super().__init__()
        self.it = likelihood

    def forward(self, q, y, z):
        return self.it.expected_log_prob(q, y, z)


@every_likelihood
def test_jensen(name):
    """E[log p] ≤ log E[p], for every point."""
    likelihood, q, y = build(name, estimator="monte_carlo"), marginals(), targets(name)
    if name == "gaussian":  # its sampled log_marginal is not a mean over the samples
        likelihood.estimator = "exact"
    z = noise(S=200)
    assert (likelihood.expected_log_prob(q, y, z) <= likelihood.log_marginal(q, y, z)).all()


@every_likelihood
def test_variances_just_below_zero_count_as_zero(name):
    """A variance check lets values above −1e-10 pass; their root was NaN."""
    q = marginals()
    below = Marginals(q.mean, torch.full_like(q.var, -5e-11))
    zero = Marginals(q.mean, torch.zeros_like(q.var))
    likelihood, y, z = build(name), targets(name), noise()
    for key, value in answers(likelihood, below, y, z).items():
        torch.testing.assert_close(
            value, answers(likelihood, zero, y, z)[key], rtol=1e-6, atol=1e-6, msg=key
        )


@every_likelihood
def test_the_contract_builds_it_from_a_configuration_and_says_what_is_wrong(name):
    config = LikelihoodConfig(likelihood=name, num_outputs=C, num_samples=7, noise_var=0.3)
    likelihood = build_likelihood(config)
    assert type(likelihood) is LIKELIHOODS[name]
    assert (likelihood.num_outputs, likelihood.num_samples) == (C, 7)
    assert "object at" not in repr(likelihood)
    assert "num_samples=7" in repr(likelihood)
    if hasattr(likelihood, "noise_var"):
        assert likelihood.noise_var.tolist() == pytest.approx(3 * [0.3])
        shared = build_likelihood(replace(config, shared_noise=True))
        assert shared.noise_var.shape == ()
    for change, message in {
        ("num_outputs", 0): "num_outputs must be",
        ("num_samples", 0): "num_samples must be positive, got 0",
        ("estimator", "x"): "estimator must be exact or monte_carlo",
    }.items():
        bad = copy.copy(config)
        object.__setattr__(bad, *change[:2])
        with pytest.raises(ValueError, match=message):
            check_likelihood(bad)


def test_a_custom_likelihood_is_found_by_its_path_once_imported():
    path = f"{__name__}.Laplace"
    likelihood = build_likelihood(LikelihoodConfig(likelihood=path, num_outputs=C))
    q, y = marginals(), targets("gaussian")
    likelihood.double().fit_targets_(y)
    assert likelihood.expected_log_prob(q, y, noise()).shape == (5,)
    g, w = likelihood.derivatives(q, y, noise())
    assert g.shape == (5, C)
    assert w.shape == (5, C)
    for name, message in {
        "laplace": "unknown likelihood 'laplace'; known are categorical, gaussian, poisson",
        "nowhere.Laplace": r"import it first \(the program: --import nowhere\)",
        "math.pi": "math.pi is no likelihood: it must be a subclass of Likelihood",
    }.items():
        with pytest.raises(ValueError, match=message):
            check_likelihood(LikelihoodConfig(likelihood=name))


class Laplace(PerTarget):
    """All that a custom likelihood has to write."""

    def log_density(self, z, f):
        return -(z - f).abs() - math.log(2)

    def moments(self, q, noise):
        return q.mean, (q.var + 2).expand_as(q.mean)

    def draw(self, f, generator):
        return f


# ---- targets in their own units ----


@every_target
def test_log_likelihoods_are_those_of_the_targets_themselves(name):
    """By numerical integration over y: the density sums to 1 in the units of y."""
    likelihood, z = LIKELIHOODS[name](1).double(), noise()[..., :1]
    q = Marginals(torch.tensor([[0.3]]).double(), torch.tensor([[0.4]]).double())
    if name == "poisson":
        likelihood.fit_targets_(torch.tensor([[2.0], [6.0]]))
        ys = torch.arange(400.0).double()[:, None]
    else:
        likelihood.fit_targets_(torch.tensor([[2011.0], [2017.0]]).double())
        ys = torch.linspace(-2e3, 6e3, 40_001, dtype=torch.float64)[:, None]
    many = Marginals(q.mean.expand(len(ys), 1), q.var.expand(len(ys), 1))
    p = torch.cat(
        [
            likelihood.log_marginal(Marginals(m, v), y, z).exp()
            for m, v, y in zip(
                many.mean.split(20_000), many.var.split(20_000), ys.split(20_000), strict=True
            )
        ]
    )
    step = ys[1, 0] - ys[0, 0]
    assert (p * step).sum().item() == pytest.approx(1, abs=1e-5)
    predicted = likelihood.predict(q, z)
    p = p.detach()
    mean = float((p * ys[:, 0] * step).sum())
    assert mean == pytest.approx(predicted["mean"].item(), rel=1e-5)
    var = float((p * (ys[:, 0] - mean).square() * step).sum())
    assert var == pytest.approx(predicted["variance"].item(), rel=2e-2)  # heavy tails


@every_target
def test_drawn_targets_have_the_predicted_moments(name):
    likelihood, q = build(name), marginals(B=2)
    if name == "student_t":
        likelihood.log_degrees.data.fill_(math.log(8))
    f = sample(q, draw_noise(200_000, q.mean.shape, generator(2), q.mean.dtype))
    drawn = likelihood.draw_targets(f, generator(3))
    predicted = likelihood.predict(q, noise())
    std = predicted["variance"].sqrt()
    assert ((drawn.mean(0) - predicted["mean"]).abs() / std).max() < 0.01
    torch.testing.assert_close(drawn.var(0), predicted["variance"], rtol=0.05, atol=0)
    if name == "poisson":
        assert torch.equal(drawn, drawn.round())


def test_years_are_centred_before_they_are_rounded():
    """In float32 the numbers 2011.5 and 2011.5001 are the same."""
    y = 2011.5 + 1e-5 * torch.randn(50, 1, generator=generator(3), dtype=torch.float64)
    likelihood = Gaussian(1)
    likelihood.fit_targets_(y)
    z = likelihood.scaled(y, torch.zeros(50, 1))
    exact = (y - float(likelihood.shift)) / float(likelihood.scale)
    torch.testing.assert_close(z.double(), exact, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_targets_with_a_large_offset_keep_their_scale(dtype):
    """Unix times: the deviation is 1e-8 of the mean, and float32 has steps of 128 there."""
    y = 1.7e9 + 40 * torch.randn(200, 1, generator=generator(3), dtype=torch.float64)
    fitted, likelihood = Gaussian(1), Gaussian(1, noise_var=0.04).to(dtype)
    fitted.fit_targets_(y)
    likelihood.load_state_dict({**fitted.state_dict(), "log_noise_var": torch.tensor([0.04]).log()})
    assert likelihood.to(dtype).scale.item() == pytest.approx(y.std(correction=0).item())
    z = likelihood.scaled(y, torch.zeros(200, 1, dtype=dtype))
    found = likelihood.predict(Marginals(z, torch.zeros_like(z)), noise()[..., :1])
    torch.testing.assert_close(found["mean"], y, rtol=0, atol=1e-4)
    std = 0.2 * y.std(correction=0).expand_as(y)
    torch.testing.assert_close(found["variance"].sqrt(), std, rtol=1e-6, atol=0)


@every_target
def test_units_of_weighted_targets_are_those_of_repeated_ones(name):
    y = targets(name, 6)
    weights = torch.tensor([2, 0, 1, 3, 0, 1])
    weighted, repeated = LIKELIHOODS[name](C).double(), LIKELIHOODS[name](C).double()
    weighted.fit_targets_(y, weights.double())
    repeated.fit_targets_(y.repeat_interleave(weights, 0))
    torch.testing.assert_close(weighted.shift, repeated.shift)
    torch.testing.assert_close(weighted.scale, repeated.scale)


@pytest.mark.parametrize("name", ["gaussian", "student_t"])
@pytest.mark.parametrize("estimator", ["exact", "monte_carlo"])
def test_each_target_has_the_noise_of_its_own_model(name, estimator):
    likelihood, q, y, z = build(name, estimator=estimator), marginals(), targets(name), noise()
    parts = []
    for c in range(C):
        alone = LIKELIHOODS[name](1, estimator=estimator).double()
        alone.load_state_dict({k: v[c : c + 1] for k, v in likelihood.state_dict().items()})
        mine = Marginals(q.mean[:, c : c + 1], q.var)
        parts.append(answers(alone, mine, y[:, c : c + 1], z[..., c : c + 1]))
    for key, value in answers(likelihood, q, y, z).items():
        if key in ("expected", "marginal"):
            expected = sum(part[key] for part in parts)
        else:
            expected = torch.cat([part[key] for part in parts], 1)
        torch.testing.assert_close(value.expand_as(expected), expected, msg=key)
    assert len(set(likelihood.noise_var.tolist())) == C


@pytest.mark.parametrize("name", ["gaussian", "student_t"])
def test_a_shared_noise_of_old_models_is_loaded_as_that_of_each(name):
    old = random_(LIKELIHOODS[name](C, shared_noise=True)).double()
    new = LIKELIHOODS[name](C).double()
    new.load_state_dict(old.state_dict())
    q, y, z = marginals(), targets(name), noise()
    for key, value in answers(new, q, y, z).items():
        torch.testing.assert_close(value, answers(old, q, y, z)[key], msg=key)
    assert next(iter(new.parameters())).shape == (C,)


def test_start_values_are_those_of_float64():
    config = LikelihoodConfig(likelihood="student_t", noise_var=0.1, num_outputs=2)
    likelihood = build_likelihood(config)
    assert likelihood.double().noise_var[0].item() != pytest.approx(0.1, abs=1e-10)
    start_in_(likelihood, torch.float64)
    assert likelihood.noise_var.tolist() == pytest.approx([0.1, 0.1], abs=1e-15)
    assert likelihood.degrees.tolist() == pytest.approx([4, 4], abs=1e-15)


def test_constant_targets_keep_their_units():
    likelihood = Gaussian(2)
    likelihood.fit_targets_(torch.tensor([[5.0, 1.0], [5.0, 3.0]]))
    assert likelihood.shift.tolist() == [5, 2]
    assert likelihood.scale.tolist() == [1, 1]
    counts = Poisson(1)
    counts.fit_targets_(torch.zeros(4, 1))
    assert counts.shift.exp().item() == pytest.approx(1 / 8)


# ---- each ----


def test_probabilities_sum_to_one_and_shared_noise_does_not_depend_on_the_place():
    q, categorical = marginals(), Categorical(3)
    p = categorical.predict(q, noise())["probabilities"]
    torch.testing.assert_close(p.sum(1), torch.ones(5, dtype=torch.float64))
    flipped = categorical.predict(Marginals(q.mean.flip(0), q.var.flip(0)), noise())
    assert torch.equal(flipped["probabilities"].flip(0), p)
    assert categorical.hits(q, q.mean.argmax(1)).all()


def test_log_marginal_is_the_log_of_the_prediction_and_clips_only_when_asked():
    q, categorical = marginals(), Categorical(3)
    z = noise(B=5, S=50)
    p = categorical.predict(q, z)["probabilities"][torch.arange(5), LABELS]
    torch.testing.assert_close(categorical.log_marginal(q, LABELS, z), p.log())
    hopeless = Marginals(torch.tensor([[0.0, 200.0]]), torch.tensor([[1e-6]]))
    two, zero = Categorical(2), torch.zeros(1, 1, 2)
    label = torch.tensor([0])
    assert two.log_marginal(hopeless, label, zero) == pytest.approx(-200)
    eps = torch.finfo(torch.float32).eps
    clipped = two.log_marginal(hopeless, label, zero, clip=True)
    assert clipped == pytest.approx(math.log(eps))
    assert two.log_marginal(hopeless, 1 - label, zero) == 0
    sure = two.log_marginal(hopeless, 1 - label, zero, clip=True)
    assert sure == pytest.approx(math.log1p(-eps), rel=1e-3)


def test_latent_functions_are_in_the_units_of_the_targets():
    q = marginals()
    likelihood = build("gaussian")
    found, (shift, scale) = likelihood.latent(q), likelihood.units
    torch.testing.assert_close(found.mean, shift + scale * q.mean)
    torch.testing.assert_close(found.var, scale.square() * q.var)
    counts = build("poisson")
    torch.testing.assert_close(counts.latent(q).mean, counts.shift + q.mean)  # of the logarithm
    assert torch.equal(counts.latent(q).var, q.var)


@every_target
def test_exact_is_the_limit_of_sampling(name):
    q, y = marginals(B=3), targets(name, 3)
    exact, sampled = build(name), build(name, estimator="monte_carlo")
    z = noise(S=400_000)
    for method in ("expected_log_prob", "log_marginal"):
        a, b = (getattr(likelihood, method)(q, y, z) for likelihood in (exact, sampled))
        torch.testing.assert_close(a, b, rtol=0, atol=0.05)
    for a, b in zip(exact.derivatives(q, y, z), sampled.derivatives(q, y, z), strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)
    for key, value in exact.predict(q, z).items():
        torch.testing.assert_close(sampled.predict(q, z)[key], value, rtol=0.02, atol=0.02)


def expectation(function, mean, var, peak):
    """E of a function of f ~ N(mean, var), by scipy."""
    std = math.sqrt(var)
    low, high = mean - 12 * std, mean + 12 * std
    points = [peak] if low < peak < high else None
    normal = stats.norm(mean, std)
    value, _ = quad(
        lambda f: normal.pdf(f) * function(f), low, high, points=points, limit=500, epsabs=0
    )
    return value


@pytest.mark.parametrize("degrees", [2.5, 4.0, 30.0, 2000.0])
@pytest.mark.parametrize(("y", "var"), [(0.4, 0.2), (-7.0, 1.0), (25.0, 0.01), (1.0, 4.0)])
def test_student_t_agrees_with_scipy(degrees, y, var):
    likelihood = StudentT(1, noise_var=0.5, degrees=degrees).double()
    t = stats.t(degrees)
    sigma = math.sqrt(0.5)

    def log_density(f):
        return t.logpdf((y - f) / sigma) - math.log(sigma)

    expected = expectation(log_density, 0.3, var, y)
    marginal = math.log(expectation(lambda f: math.exp(log_density(f)), 0.3, var, y))
    q = Marginals(torch.tensor([[0.3]]).double(), torch.tensor([[var]]).double())
    data, unused = torch.tensor([[y]]).double(), torch.zeros(1, 1, 1).double()
    assert likelihood.expected_log_prob(q, data, unused).item() == pytest.approx(expected, rel=1e-4)
    assert likelihood.log_marginal(q, data, unused).item() == pytest.approx(marginal, rel=1e-6)


@pytest.mark.parametrize("degrees", [2.5, 15.9, 16.1, 1e4, 1e6])
def test_student_t_in_float32_has_no_cancellation(degrees):
    wide = StudentT(1, noise_var=0.5, degrees=degrees).double()
    narrow = copy.deepcopy(wide).float()
    q = Marginals(torch.tensor([[0.3]]).double(), torch.tensor([[0.2]]).double())
    z, f = torch.tensor([[0.5]]).double(), torch.tensor([[[0.25]]]).double()
    sigma = wide.noise_var.sqrt().item()
    t = stats.t(wide.degrees.item()).logpdf(0.25 / sigma) - math.log(sigma)
    assert wide.log_density(z, f).item() == pytest.approx(t, rel=1e-9)
    assert narrow.log_density(z.float(), f.float()).item() == pytest.approx(t, rel=1e-5)
    exact = wide.log_marginal(q, z, f).item()
    rough = Marginals(q.mean.float(), q.var.float())
    assert narrow.log_marginal(rough, z.float(), f.float()).item() == pytest.approx(exact, rel=1e-3)


def test_a_sampled_variance_is_the_unbiased_one():
    likelihood, q, z = build("gaussian", estimator="monte_carlo"), marginals(), noise(S=3)
    f = sample(q, z).detach().numpy()
    a, b = (value.numpy() for value in likelihood.units)
    found = likelihood.predict(q, z)
    expected = b**2 * (f.var(0, ddof=1) + likelihood.noise_var.detach().numpy())
    np.testing.assert_allclose(found["variance"].detach(), expected)
    np.testing.assert_allclose(found["mean"].detach(), a + b * f.mean(0))


def test_a_variance_of_one_sample_is_that_of_the_noise():
    likelihood = Gaussian(2, num_samples=1, estimator="monte_carlo", noise_var=0.3)
    q = Marginals(torch.zeros(4, 2), torch.zeros(4, 1))
    noise = draw_noise(1, (4, 2), generator(0), torch.float32)
    torch.testing.assert_close(likelihood.predict(q, noise)["variance"], torch.full((4, 2), 0.3))
    assert likelihood.log_marginal(q, torch.ones(4, 2), noise).isfinite().all()


@pytest.mark.parametrize("log_rate", [-10.0, -17.0, -80.0])
@pytest.mark.parametrize("y", [0, 3])
def test_a_poisson_of_almost_no_rate_and_no_variance(log_rate, y):
    """The model without variance, as a network is: log p(y | f) itself."""
    q = Marginals(torch.tensor([[log_rate]]), torch.zeros(1, 1))
    found = Poisson(1).log_marginal(q, torch.tensor([[y]]), torch.zeros(1, 1, 1)).item()
    expected = y * log_rate - math.exp(log_rate) - math.lgamma(y + 1)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("y", [0, 1, 7, 300, 20_000])
@pytest.mark.parametrize(("mean", "var"), [(0.0, 0.3), (1.5, 1e-4), (2.0, 3.0)])
def test_poisson_agrees_with_scipy(y, mean, var):
    likelihood = Poisson(1).double()
    likelihood.shift.fill_(0.7)
    peak = math.log(y + 0.5) - 0.7
    q = Marginals(torch.tensor([[mean]]).double(), torch.tensor([[var]]).double())
    data, unused = torch.tensor([[y]]), torch.zeros(1, 1, 1).double()
    expected = expectation(lambda f: stats.poisson.logpmf(y, math.exp(f + 0.7)), mean, var, peak)
    assert likelihood.expected_log_prob(q, data, unused).item() == pytest.approx(expected, rel=1e-6)

    grid = np.linspace(min(mean, peak) - 9, max(mean, peak) + 9, 2_000_001)
    log_p = stats.poisson.logpmf(y, np.exp(grid + 0.7))
    log_q = stats.norm.logpdf(grid, mean, math.sqrt(var))
    values = np.logaddexp.reduce(log_p + log_q) + math.log(grid[1] - grid[0])
    assert likelihood.log_marginal(q, data, unused).item() == pytest.approx(values, rel=1e-6)


def test_bad_labels_and_targets():
    q, z = marginals(), torch.zeros(1, 5, 3, dtype=torch.float64)
    categorical, gaussian, poisson = Categorical(3), Gaussian(3), Poisson(3)
    with pytest.raises(ValueError, match=r"labels must lie in 0 … 2 \(3 classes\), got .* 0 to 3"):
        categorical.expected_log_prob(q, torch.tensor([0, 1, 2, 3, 0]), z)
    with pytest.raises(ValueError, match=r"labels must lie .* from -1"):
        categorical.log_marginal(q, LABELS - 1, z)
    with pytest.raises(ValueError, match=r"labels must have shape \(5,\), got \(4,\)"):
        categorical.expected_log_prob(q, LABELS[:4], z)
    with pytest.raises(TypeError, match=r"labels must be int64 class numbers, got torch.float32"):
        categorical.expected_log_prob(q, LABELS.float(), z)
    with pytest.raises(ValueError, match=r"targets must have shape \(5, 3\), got \(5, 1\)"):
        gaussian.expected_log_prob(q, torch.zeros(5, 1, dtype=torch.float64), z)
    with pytest.raises(ValueError, match="targets must be finite, got 15 NaN"):
        gaussian.log_marginal(q, torch.full((5, 3), torch.nan, dtype=torch.float64), z)
    with pytest.raises(TypeError, match=r"targets must be real numbers, got torch.bool"):
        gaussian.log_marginal(q, torch.ones(5, 3, dtype=torch.bool), z)
    with pytest.raises(ValueError, match=r"counts must be whole numbers, 0 or more, got .* 0.5"):
        poisson.expected_log_prob(q, torch.full((5, 3), 0.5), z)
    with pytest.raises(ValueError, match=r"counts must be whole numbers, .* -1"):
        poisson.fit_targets_(-torch.ones(5, 3))
    with pytest.raises(ValueError, match="noise_var must be positive"):
        Gaussian(1, noise_var=0.0)
    with pytest.raises(ValueError, match="degrees must be above 2, got 2"):
        StudentT(1, degrees=2.0)
    with pytest.raises(ValueError, match="Categorical: num_outputs must be 2 or more"):
        Categorical(1)


# ---- samples of the logits ----


def decisions(m: torch.Tensor, std: float, points: torch.Tensor) -> torch.Tensor:
    q = Marginals(m, torch.full((len(m), 1), std**2, dtype=m.dtype))
    return Categorical(m.shape[1]).predict(q, points)["probabilities"].argmax(1)


@pytest.mark.parametrize("number", [100, 1000])
def test_two_equal_classes_have_equal_probabilities(number):
    for seed in range(50):
        points = even_points(number, 2, generator(seed))
        for std in (0.1, 1.0, 10.0):
            q = Marginals(torch.full((1, 2), 7.0), torch.tensor([[std**2]]))
            p = Categorical(2).predict(q, points)["probabilities"]
            assert p[0, 0].item() == pytest.approx(0.5, abs=0.005)


@pytest.mark.parametrize(("classes", "spread", "std"), [(2, 1.0, 2.0), (3, 2.0, 0.5), (10, 4, 0.4)])
def test_decisions_are_those_of_exact_probabilities(classes, spread, std):
    # with a variance that the classes share the exact ones have the order of the means
    draw, wrong = generator(3), []
    m = spread * torch.randn(5000, classes, generator=draw, dtype=torch.float64)
    for seed in range(8):
        points = even_points(100, classes, generator(seed), torch.float64)
        wrong.append((decisions(m, std, points) != m.argmax(1)).double().mean().item())
    assert np.mean(wrong) < 0.001
    independent = draw_noise(100, (1, classes), draw, torch.float64)
    assert (decisions(m, std, independent) != m.argmax(1)).double().mean() > 0.001


@pytest.mark.parametrize(("number", "outputs"), [(1, 3), (2, 3), (7, 2), (24, 3), (101, 10)])
def test_points_have_both_signs_and_the_moments_of_a_normal(number, outputs):
    z = even_points(number, outputs, generator(), torch.float64)[:, 0]
    assert z.shape == (number, outputs)
    torch.testing.assert_close(z.sort(0).values, (-z).sort(0).values)
    second = z.mT @ z / number
    expected = torch.eye(outputs, dtype=torch.float64) * (number > 1)
    if number >= 8 * outputs:
        torch.testing.assert_close(second, expected)
    torch.testing.assert_close(second.diag(), expected.diag())
    if number > 100:  # the quantiles of a normal, nearly
        assert (z.abs() < 0.6745).double().mean() == pytest.approx(0.5, abs=0.05)
    assert not torch.equal(z, even_points(number, outputs, generator(1), torch.float64)[:, 0]) or (
        number == 1
    )


@pytest.mark.parametrize("shared_noise", [True, False])
@pytest.mark.parametrize("shared_variance", [True, False])
def test_portions_of_the_samples_change_nothing(shared_noise, shared_variance, monkeypatch):
    likelihood, y = Categorical(3), targets("categorical", 7)
    z = noise(1 if shared_noise else 7)
    found = []
    for portion in (10**9, 3 * len(z) * 3, 1):  # all rows, three at a time, one at a time
        monkeypatch.setattr(categorical, "PORTION", portion)
        q = marginals(7, shared=shared_variance)
        mean, var = q.mean.requires_grad_(), q.var.requires_grad_()
        expected = likelihood.expected_log_prob(q, y, z)
        weights = torch.arange(1.0, 8.0, dtype=torch.float64)
        slopes = torch.autograd.grad((weights * expected).sum(), (mean, var))
        with torch.no_grad():
            rest = answers(likelihood, q, y, z) | {
                "information": likelihood.mutual_information(q, z)
            }
        found.append({**rest, "by_mean": slopes[0], "by_var": slopes[1]})
    for other in found[1:]:
        for key, value in found[0].items():
            torch.testing.assert_close(other[key], value, msg=key)


@pytest.mark.parametrize("shared", [True, False])
def test_the_gradient_of_the_mean_logsumexp(shared):
    q, z = marginals(4, shared=shared), noise(4, S=6)
    inputs = q.mean.requires_grad_(), q.var.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda mean, var: categorical.mean_logsumexp(Marginals(mean, var), z), inputs
    )
    sure = Marginals(q.mean, torch.tensor([[0.0], [-1e-12], [0.0], [0.0]]).double())
    sure.var.requires_grad_()
    categorical.mean_logsumexp(sure, z).sum().backward()
    assert sure.var.grad.eq(0).all()  # what is clamped does not move, and is no NaN


@pytest.mark.parametrize(("mean", "var"), [((0.3, -0.5), 0.4), ((2.0, -1.0), 4.0)])
def test_two_classes_agree_with_scipy(mean, var):
    normal = stats.norm(mean[0] - mean[1], math.sqrt(2 * var))  # of the difference of the logits

    def integral(function):
        low, high = normal.ppf(1e-14), normal.ppf(1 - 1e-14)
        return quad(lambda d: normal.pdf(d) * function(d), low, high, limit=500)[0]

    p, log_p = integral(expit), integral(lambda d: -np.logaddexp(0, -d))
    curvature = integral(lambda d: expit(d) * expit(-d))
    q = Marginals(torch.tensor([mean]).double(), torch.tensor([[var]]).double())
    points, label = even_points(20_000, 2, generator(), torch.float64), torch.tensor([0])
    likelihood = Categorical(2)
    assert likelihood.predict(q, points)["probabilities"][0, 0].item() == pytest.approx(p, abs=1e-3)
    assert likelihood.log_marginal(q, label, points).item() == pytest.approx(math.log(p), abs=2e-3)
    found = likelihood.expected_log_prob(q, label, points).item()
    assert found == pytest.approx(log_p, abs=5e-3)
    g, w = likelihood.derivatives(q, label, points)
    assert g[0].tolist() == pytest.approx([1 - p, p - 1], abs=1e-3)
    assert w.item() == pytest.approx(curvature, abs=1e-3)


def test_noise_that_would_be_large_is_shared_over_the_batch(monkeypatch):
    monkeypatch.setattr(likelihood_module, "MOST_NOISE", 100)
    assert draw_noise(10, (5, 2), generator()).shape == (10, 5, 2)
    assert draw_noise(10, (6, 2), generator()).shape == (10, 1, 2)
