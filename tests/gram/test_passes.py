"""One pass over the data must give the values and gradients of the plain formulas."""

import pytest
import torch

from gramian.gram.fast import passes
from gramian.gram.fast.passes import (
    condition_diagonal,
    cross,
    normalized_gaussian,
    project,
    row_blocks,
    translate,
)
from tests.samples import generator

N, P, GAMMA = 7, 4, 2


def normals(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64).requires_grad_()


def positives(*shape: int, seed: int = 0) -> torch.Tensor:
    draw = torch.rand(shape, generator=generator(seed), dtype=torch.float64)
    return (0.5 + draw).requires_grad_()


@pytest.fixture(params=[1, 2 * P * 8, 2**21], ids=["row", "two rows", "all"])
def block(request, monkeypatch):
    """Blocks of one row, of two and of all rows: the sums over blocks must be complete."""
    monkeypatch.setattr(passes, "BLOCK_BYTES", request.param)


def test_the_normalised_gaussian_kernel_and_its_gradients(block):
    c, x, y = normals(N, P), positives(N), positives(P, seed=1)
    w, b, beta = positives(), positives(seed=1), positives(seed=2)
    s = (x[:, None] * y).sqrt()
    expected = w * s * (beta * (c / s - 1)).exp() + b
    torch.testing.assert_close(normalized_gaussian(c, x, y, w, b, beta), expected)
    assert torch.autograd.gradcheck(normalized_gaussian, (c, x, y, w, b, beta))


@pytest.mark.parametrize("beta", [39.0, 41.0, 120.0, 1000.0])
def test_a_kernel_of_any_bandwidth_is_finite_in_float32(beta):
    c, x, y = normals(N, P).detach(), positives(N).detach(), positives(P, seed=1).detach()
    s = (x[:, None] * y).sqrt()
    c = s * c.tanh()
    c[0] = s[0]  # a point that is one of the inducing points but for its length
    one, steep = torch.ones(()).double(), torch.tensor(beta).double()
    expected = s * (steep * (c / s - 1)).exp() + one
    found = normalized_gaussian(*(value.float() for value in (c, x, y, one, one, steep)))
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-6)


def test_the_projection_and_its_gradients(block):
    X, R = normals(N, P), normals(P, P + GAMMA, seed=1)
    U, more = project(X, R)
    torch.testing.assert_close(U, X @ R)
    torch.testing.assert_close(more, (X @ R).square().sum(1) - X.square().sum(1))
    assert torch.autograd.gradcheck(project, (X, R))
    torch.testing.assert_close(project(X, R, less=False)[1], (X @ R).square().sum(1))
    assert torch.autograd.gradcheck(lambda *args: project(*args, less=False), (X, R))


@pytest.mark.parametrize("tail", [None, positives(1), positives(P)], ids=["no", "one", "each"])
@pytest.mark.parametrize("skip", [None, normals(N, P, seed=2)], ids=["plain", "skip"])
def test_the_cross_block_and_its_gradients(block, tail, skip):
    U, W = normals(N, GAMMA if tail is None else GAMMA + P), normals(P, GAMMA, seed=1)
    expected = U[:, :GAMMA] @ W.mT
    expected = expected if tail is None else expected + U[:, GAMMA:] * tail
    expected = expected if skip is None else expected + 0.3 * skip
    torch.testing.assert_close(cross(U, W, tail, skip, 0.3), expected)
    assert torch.autograd.gradcheck(lambda *args: cross(*args, 0.3), (U, W, tail, skip))


def test_the_translation_and_its_gradients(block):
    G, a, shift = normals(N, P), normals(P, seed=1), normals(P, seed=2)
    T, d = translate(G, a, shift)
    torch.testing.assert_close(d, G @ a)
    torch.testing.assert_close(T, G - (G @ a)[:, None] + shift)
    assert torch.autograd.gradcheck(translate, (G, a, shift))


@pytest.mark.parametrize("skip", [None, normals(N, 3, seed=2)], ids=["plain", "skip"])
def test_the_diagonal_form(block, skip):
    Y, spread, product = normals(N, P), normals(P, seed=1), normals(P, 3, seed=3)
    with torch.no_grad():
        G, more = condition_diagonal(Y, spread, product, skip, 0.3)
        torch.testing.assert_close(G, Y @ product + (0 if skip is None else 0.3 * skip))
        torch.testing.assert_close(more, (Y.square() * spread).sum(1))


def test_a_point_of_norm_zero_has_finite_kernels_and_gradients():
    c, x, y = torch.zeros(2, 3), torch.zeros(2).requires_grad_(), torch.ones(3)
    K = normalized_gaussian(c, x, y, *torch.tensor([1.0, 0.0, 2.0]))
    assert torch.allclose(K, torch.zeros(2, 3), atol=1e-15)
    K.sum().backward()
    assert x.grad.isfinite().all()


def test_blocks_cover_all_rows_once(block):
    rows = torch.arange(N)
    assert torch.equal(torch.cat([rows[b] for b in row_blocks(normals(N, P))]), rows)
