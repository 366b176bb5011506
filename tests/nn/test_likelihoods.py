import math

import pytest
import torch

from gramian import Marginals
from gramian.nn.likelihoods import Categorical, Gaussian, Likelihood, draw_noise
from tests.samples import generator


def marginals(B=5, C=3, dtype=torch.float64) -> Marginals:
    draw = generator(0)
    mean = torch.randn(B, C, generator=draw, dtype=dtype)
    return Marginals(mean, torch.rand(B, 1, generator=draw, dtype=dtype) + 0.1)


LABELS = torch.tensor([0, 1, 2, 1, 0])


@pytest.mark.parametrize("likelihood", [Categorical(3), Gaussian()])
def test_both_keep_the_contract(likelihood):
    assert isinstance(likelihood, Likelihood)
    assert "object at" not in repr(likelihood)


def test_probabilities_sum_to_one_and_shared_noise_does_not_depend_on_the_place():
    q, categorical = marginals(), Categorical(3)
    noise = draw_noise(50, (1, 3), generator(1), torch.float64)
    p = categorical.predict(q, noise)
    torch.testing.assert_close(p.sum(1), torch.ones(5, dtype=torch.float64))
    flipped = categorical.predict(Marginals(q.mean.flip(0), q.var.flip(0)), noise)
    assert torch.equal(flipped.flip(0), p)


def test_log_marginal_is_the_log_of_the_prediction_and_clips_only_when_asked():
    q, categorical = marginals(), Categorical(3)
    noise = draw_noise(50, (5, 3), generator(1), torch.float64)
    p = categorical.predict(q, noise)[torch.arange(5), LABELS]
    torch.testing.assert_close(categorical.log_marginal(q, LABELS, noise), p.log())
    hopeless = Marginals(torch.tensor([[0.0, 200.0]]), torch.tensor([[1e-6]]))
    two, zero = Categorical(2), torch.zeros(1, 1, 2)
    label = torch.tensor([0])
    assert two.log_marginal(hopeless, label, zero) == pytest.approx(-200)
    clipped = two.log_marginal(hopeless, label, zero, clip=True)
    assert clipped == pytest.approx(math.log(torch.finfo(torch.float32).eps))


def test_jensen():
    """E[log p] ≤ log E[p], for every point and the same samples."""
    q = marginals()
    noise = draw_noise(200, (5, 3), generator(1), torch.float64)
    sampled = Categorical(3, estimator="monte_carlo")
    assert (
        sampled.expected_log_prob(q, LABELS, noise) <= sampled.log_marginal(q, LABELS, noise)
    ).all()


def test_exact_gaussian_is_the_limit_of_sampling():
    q = marginals(B=3)
    y = torch.randn(3, 3, generator=generator(2), dtype=torch.float64)
    noise = draw_noise(400_000, (1, 3), generator(3), torch.float64)
    exact, sampled = Gaussian(0.5).double(), Gaussian(0.5, estimator="monte_carlo").double()
    for method in ("expected_log_prob", "log_marginal"):
        a, b = (getattr(g, method)(q, y, noise) for g in (exact, sampled))
        torch.testing.assert_close(a, b, rtol=0, atol=0.05)
    mean, var = exact.predict(q, noise)
    assert torch.equal(mean, q.mean)
    torch.testing.assert_close(var, (q.var + 0.5).expand(3, 3))


def test_bad_labels_and_targets():
    q, noise = marginals(), torch.zeros(1, 5, 3, dtype=torch.float64)
    categorical, gaussian = Categorical(3), Gaussian()
    with pytest.raises(ValueError, match=r"labels must lie in 0 … 2 \(3 classes\), got .* 0 to 3"):
        categorical.expected_log_prob(q, torch.tensor([0, 1, 2, 3, 0]), noise)
    with pytest.raises(ValueError, match=r"labels must lie .* from -1"):
        categorical.log_marginal(q, LABELS - 1, noise)
    with pytest.raises(ValueError, match=r"labels must have shape \(5,\), got \(4,\)"):
        categorical.expected_log_prob(q, LABELS[:4], noise)
    with pytest.raises(TypeError, match=r"labels must be int64 class numbers, got torch.float32"):
        categorical.expected_log_prob(q, LABELS.float(), noise)
    with pytest.raises(ValueError, match=r"targets must have shape \(5, 3\), got \(5, 1\)"):
        gaussian.expected_log_prob(q, torch.zeros(5, 1, dtype=torch.float64), noise)
    with pytest.raises(ValueError, match="targets must be finite, got 15 NaN"):
        gaussian.log_marginal(q, torch.full((5, 3), torch.nan, dtype=torch.float64), noise)
    with pytest.raises(ValueError, match="noise_var must be positive"):
        Gaussian(0.0)
