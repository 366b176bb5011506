import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gramian.gram.divergence import gaussian_divergence
from gramian.gram.linalg import cholesky
from tests.samples import generator, random_psd

KINDS = ["exact", "taylor", "taylor_symmetric"]
seeds = st.integers(0, 10_000)


def divergence(kind, G, K):
    return gaussian_divergence(kind, K, cholesky(K, "K"), cholesky(G, "G"))


def direction(P: int, seed: int) -> torch.Tensor:
    noise = torch.randn(P, P, generator=generator(seed), dtype=torch.float64)
    return (noise + noise.mT) / 2 / P


@given(seeds)
def test_exact_is_the_kl_of_gaussians(seed):
    G, K = random_psd(4, seed), random_psd(4, seed + 1)
    zero = torch.zeros(4, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal
    kl = torch.distributions.kl_divergence(normal(zero, G), normal(zero, K))
    torch.testing.assert_close(divergence("exact", G, K), kl)


@given(seeds, st.integers(1, 6))
def test_all_vanish_at_equality_and_are_positive_elsewhere(seed, P):
    G, K = random_psd(P, seed), random_psd(P, seed + 1)
    for kind in KINDS:
        assert abs(divergence(kind, K, K)) < 1e-12 * np.linalg.cond(K) ** 2
        assert divergence(kind, G, K) > 0


@given(seeds)
def test_the_published_form_bounds_the_symmetric_one(seed):
    G, K = random_psd(4, seed), random_psd(4, seed + 1)
    assert divergence("taylor", G, K) >= divergence("taylor_symmetric", G, K) * (1 - 1e-12)


@given(seeds)
def test_the_symmetric_form_is_the_second_order_term(seed):
    """For G = L (I + s E) Lᵀ the remainder is s³ tr(E³)/3, up to the fourth order in s."""
    K, E = random_psd(4, seed), direction(4, seed)
    L = cholesky(K, "K")
    for step in (1e-1, 5e-2, 2e-2):
        G = L @ (torch.eye(4, dtype=torch.float64) + step * E) @ L.mT
        remainder = divergence("exact", G, K) - divergence("taylor_symmetric", G, K)
        third = step**3 * torch.trace(E @ E @ E) / 3
        assert abs(remainder - third) < step**4 * torch.trace(E @ E @ E @ E)


def test_the_published_form_is_not_the_second_order_term():
    """Its ratio to the KL tends to a constant that is not 1: said in the docstring, kept true."""
    K, E = random_psd(4, 3), direction(4, 3)
    L = cholesky(K, "K")
    G = L @ (torch.eye(4, dtype=torch.float64) + 1e-4 * E) @ L.mT
    exact = divergence("exact", G, K)
    assert divergence("taylor_symmetric", G, K) / exact == pytest.approx(1, abs=1e-3)
    assert divergence("taylor", G, K) / exact > 1.05


def test_the_two_taylor_forms_agree_when_the_matrices_commute():
    G, K = torch.diag(torch.tensor([1.0, 2.0])), torch.diag(torch.tensor([1.5, 1.0]))
    torch.testing.assert_close(divergence("taylor", G, K), divergence("taylor_symmetric", G, K))


@pytest.mark.parametrize("kind", KINDS)
def test_layers_at_once_are_each_layer(kind):
    K, L_K, L_G = (torch.stack(same) for same in zip(*(
        (K, cholesky(K, "K"), cholesky(random_psd(4, seed + 9), "G"))
        for seed, K in ((seed, random_psd(4, seed)) for seed in range(3))
    ), strict=True))  # fmt: skip
    each = [gaussian_divergence(kind, *layer) for layer in zip(K, L_K, L_G, strict=True)]
    torch.testing.assert_close(gaussian_divergence(kind, K, L_K, L_G), torch.stack(each))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    def run(A, B):
        eye = torch.eye(3, dtype=torch.float64)
        return divergence(kind, A @ A.mT + eye, B @ B.mT + eye)

    draw = generator(0)
    leaves = [torch.randn(3, 3, generator=draw, dtype=torch.float64) for _ in range(2)]
    assert torch.autograd.gradcheck(run, [leaf.requires_grad_() for leaf in leaves])
