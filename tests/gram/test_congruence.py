"""Values and gradients of Σ_d C_d Φ C_dᵀ / D, whole and by blocks."""

import pytest
import torch

from gramian.gram.fast import congruence as module
from gramian.gram.fast.congruence import congruence, symmetric_product
from tests.samples import generator, random_psd

SHAPES = [(5, 3, 4), (1, 2, 6), (9, 1, 2)]


@pytest.fixture(params=[1, 512], ids=["blocks", "whole"])
def splitting(request, monkeypatch):
    monkeypatch.setattr(module, "WORTH_SPLITTING", request.param)


@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_those_of_the_plain_sum(splitting, shape):
    C = torch.randn(shape, generator=generator(), dtype=torch.float64).requires_grad_()
    phi = random_psd(shape[2], 1).requires_grad_()
    K = congruence(C, phi)
    plain = torch.einsum("odi,ij,pdj->op", C, phi, C) / shape[1]
    torch.testing.assert_close(K, plain)
    weights = torch.randn(K.shape, generator=generator(2), dtype=torch.float64)
    dC, dphi = torch.autograd.grad(K, (C, phi), weights)
    plain_dC, plain_dphi = torch.autograd.grad(plain, (C, phi), weights)
    torch.testing.assert_close(dC, plain_dC)
    torch.testing.assert_close(dphi, (plain_dphi + plain_dphi.mT) / 2)  # symmetric, as Φ is


def test_a_symmetric_product_by_blocks(splitting):
    A = torch.randn(7, 3, generator=generator(), dtype=torch.float64)
    torch.testing.assert_close(symmetric_product(A, A), A @ A.mT)
