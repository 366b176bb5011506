import math

import pytest
import torch

from gramian import SKR
from gramian.gram.linalg import cholesky
from tests.samples import generator, random_psd


def sample(skr: SKR, L: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    W = skr.factor(L, skr.draw_noise(len(L), draw, L.dtype))
    return W @ W.mT


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0, 2.0])
def test_a_sample_is_its_definition(fraction):
    """G̃ = L Z Zᵀ Lᵀ/γ with γ = fraction · P columns of standard normals Z."""
    L, skr = cholesky(random_psd(4, 0), "G"), SKR(fraction)
    Z = skr.draw_noise(4, generator(1), L.dtype)
    assert Z.shape == (4, 4 * fraction)
    expected = L @ Z @ Z.mT @ L.mT / (4 * fraction)
    torch.testing.assert_close(sample(skr, L, generator(1)), expected)


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0, 2.0])
def test_wishart_mean_and_variance(fraction):
    """E[G̃] = G and Var[G̃_pq] = (G_pq² + G_pp G_qq)/γ, by z-scores over 8,000 draws."""
    n, P = 8_000, 4
    G = random_psd(P, 0)
    skr = SKR(fraction)
    draw, L = generator(1), cholesky(G, "G")
    samples = torch.stack([sample(skr, L, draw) for _ in range(n)])
    squares = (samples - G).square()
    variance = (G.square() + torch.outer(G.diagonal(), G.diagonal())) / (fraction * P)
    for values, expected in ((samples, G), (squares, variance)):
        z = (values.mean(0) - expected) / (values.std(0) / n**0.5)
        assert z.abs().max() < 4
    assert (squares.mean(0) / variance).mean().item() == pytest.approx(1, abs=0.03)


def test_fewer_columns_than_points_gives_a_singular_sample():
    L = cholesky(random_psd(8, 0), "G")
    W = SKR(0.25).factor(L, SKR(0.25).draw_noise(8, generator(), torch.float64))
    assert W.shape == (8, 2)
    assert torch.linalg.matrix_rank(W @ W.mT) == 2


@pytest.mark.parametrize("divisor", [1, 2, 3, 4, 7, 10, 75, 100])
def test_gamma_is_the_ceiling_of_a_fraction(divisor):
    """Also where P/divisor is whole and its product in floating point is above: 525 · (1/75)."""
    sizes = range(1, 600)
    assert [SKR(1 / divisor).gamma(P) for P in sizes] == [-(-P // divisor) for P in sizes]


@pytest.mark.parametrize("power", [0.0, 0.3, 1.0])
def test_the_power_says_how_gamma_grows_and_all_agree_at_512(power):
    skr = SKR(0.25, gamma_power=power)
    assert skr.gamma(512) == 128
    assert skr.gamma(32) == math.ceil(128 * (32 / 512) ** power)
    assert SKR(0.25, gamma_power=0.0).gamma(7) == 128
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"gamma_power must be in \[0, 1\]"):
            SKR(gamma_power=wrong)


def test_the_same_seed_gives_the_same_noise():
    first, second = (SKR().draw_noise(8, generator(5), torch.float32) for _ in range(2))
    assert torch.equal(first, second)
    assert first.dtype == torch.float32


def test_settings_without_meaning_are_refused():
    with pytest.raises(ValueError, match="gamma_fraction must be positive or None, got 0"):
        SKR(0.0)
    with pytest.raises(ValueError, match="jitter must be 0 or more, got -1"):
        SKR(jitter=-1.0)
    with pytest.raises(ValueError, match="not defined without sampling"):
        SKR.off().gamma(3)
    with pytest.raises(ValueError, match=r"P×γ = \(4, 1\), got \(4, 2\)"):
        SKR().factor(torch.eye(4), torch.zeros(4, 2))


def test_a_sample_with_many_degrees_of_freedom_is_the_same_matrix_with_fewer_columns():
    skr, P = SKR(3.0), 4
    L = torch.tril(torch.rand(P, P, dtype=torch.float64)) + torch.eye(P, dtype=torch.float64)
    Z = skr.draw_noise(P, torch.Generator().manual_seed(1), torch.float64)
    W = skr.factor(L, Z)
    assert W.shape == (P, P)
    torch.testing.assert_close(W @ W.mT, L @ Z @ Z.mT @ L.mT / skr.gamma(P))
    L.requires_grad_()
    assert torch.autograd.gradcheck(lambda L: skr.factor(L, Z) @ skr.factor(L, Z).mT, L)
