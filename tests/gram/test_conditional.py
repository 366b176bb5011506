"""Conditioning against the formula with explicit inverses, and the check of its variances."""

import pytest
import torch

from gramian import VarianceCheck
from gramian.gram.conditional import NARROW, Conditional
from gramian.gram.errors import deferred_checks
from tests.samples import generator, random_gram

N, P = 7, 4


def normals(*shape, seed=0):
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("gamma", [2, NARROW - 1, NARROW, NARROW + 3])
@pytest.mark.parametrize("jitter", [0.0, 0.3])
def test_the_data_follow_the_inducing_block(gamma, jitter):
    """For few columns of W and for many, which are multiplied in another way."""
    K = random_gram(P, (N,), 0)
    W = normals(P, gamma)
    conditional = Conditional.on(torch.linalg.cholesky(K.ii), W, jitter)
    G_ii = W @ W.mT + jitter * torch.eye(P)
    torch.testing.assert_close(conditional.ii, G_ii)
    X = conditional.whiten(K.ti)
    U, g_tt = conditional.project(X, K.tt_diag)
    A = K.ti @ torch.linalg.inv(K.ii)
    explained = (A @ G_ii @ A.mT).diagonal()
    torch.testing.assert_close(g_tt, explained + K.tt_diag - (A @ K.ti.mT).diagonal())
    torch.testing.assert_close(conditional.project(X, None)[1], explained)
    G_ti = A @ G_ii
    torch.testing.assert_close(conditional.cross(U), G_ti)
    skip = normals(N, P, seed=1)
    for column in (normals(1, seed=2), normals(P, seed=2)):
        found = conditional.cross(U, column, skip, 0.3)
        torch.testing.assert_close(found, G_ti * column + 0.3 * skip)


def test_a_deferred_check_changes_only_what_an_immediate_one_refuses():
    """What rounding does to a variance of 0 passes: −1e-10 itself does not."""
    variance = torch.tensor([0.5, 0.0, -5e-11, -1e-10, -0.5], dtype=torch.float64)
    same, _ = VarianceCheck()(variance[:3])
    with deferred_checks():
        deferred, clamped = VarianceCheck()(variance)
    assert torch.equal(deferred[:3], same)
    assert deferred.isnan().tolist() == [False, False, False, True, True]
    assert clamped == 0
