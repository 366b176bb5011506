"""Products shared by processes. Threads stand for them: tests/test_processes.py has real ones."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from gramian.gram.divergence import gaussian_divergence
from gramian.gram.fast import split as module
from gramian.gram.fast.congruence import congruence
from gramian.gram.fast.split import Split, is_shared, shared_congruence, shared_solve_lower
from gramian.gram.linalg import solve_lower
from tests.samples import generator, random_psd


@pytest.fixture(autouse=True)
def all_sizes(monkeypatch):
    monkeypatch.setattr(module, "WORTH_SHARING", 1)


def in_processes(count, work):
    """What each of ``count`` threads gets from ``work(split)``, with sums over all of them."""
    barrier, given = Barrier(count, timeout=60), [None] * count

    def sum_for(rank):
        def sum_(value):
            given[rank] = value
            barrier.wait()
            total = torch.stack(given).sum(0)
            barrier.wait()
            return value.copy_(total)

        return sum_

    with ThreadPoolExecutor(count) as pool:
        splits = [Split(rank, count, sum_for(rank)) for rank in range(count)]
        return list(pool.map(work, splits))


def normals(*shape, seed=0):
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def gradients(result, inputs, weights):
    return torch.autograd.grad(result, inputs, weights, materialize_grads=True)


def shared(count, product, plain, inputs, weights):
    """Values and summed gradients of a shared product, each process with a loss of its own."""

    def work(split):
        own = [value.clone().requires_grad_() for value in inputs]
        result = product(*own, split)
        return result.detach(), gradients(result, own, weights[split.rank])

    results = in_processes(count, work)
    leaves = [value.clone().requires_grad_() for value in inputs]
    expected = plain(*leaves)
    return results, expected.detach(), gradients(expected, leaves, sum(weights))


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("shape", [(7, 9, 5), (2, 1, 3), (16, 9, 8)])
def test_a_shared_congruence_is_that_of_one_process(count, shape):
    P, P_in = shape[0], shape[2]
    weights = [normals(P, P, seed=10 + rank) for rank in range(count)]
    results, K, (dC, dPhi) = shared(
        count, shared_congruence, congruence, [normals(*shape), random_psd(P_in, 1)], weights
    )
    for found, _ in results:
        torch.testing.assert_close(found, K, rtol=1e-12, atol=1e-12)
        assert torch.equal(found, results[0][0])  # all processes go on with the same bits
    parts = [sum(shares) for shares in zip(*(g for _, g in results), strict=True)]
    torch.testing.assert_close(parts[0], dC, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parts[1], dPhi, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("columns", [1, 5, 12])
def test_a_shared_solve_is_that_of_one_process(count, columns):
    L = torch.linalg.cholesky(random_psd(6, 3))
    weights = [normals(6, columns, seed=20 + rank) for rank in range(count)]
    results, X, (dL, dB) = shared(
        count, shared_solve_lower, solve_lower, [L, normals(6, columns)], weights
    )
    for found, _ in results:
        torch.testing.assert_close(found, X, rtol=1e-12, atol=1e-12)
    parts = [sum(shares) for shares in zip(*(g for _, g in results), strict=True)]
    torch.testing.assert_close(parts[0], dL.tril(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parts[1], dB, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["exact", "taylor", "taylor_symmetric"])
def test_a_shared_divergence_is_that_of_one_process(kind):
    L_K, L_G = (torch.linalg.cholesky(random_psd(7, seed)) for seed in (1, 2))
    K = L_K @ L_K.mT

    def divergence(*matrices):
        return gaussian_divergence(kind, *matrices)

    weights = [torch.tensor(float(rank + 1), dtype=torch.float64) for rank in range(3)]
    results, expected, whole_gradients = shared(3, divergence, divergence, [K, L_K, L_G], weights)
    for found, _ in results:
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for parts, whole in zip(
        zip(*(g for _, g in results), strict=True), whole_gradients, strict=True
    ):
        torch.testing.assert_close(sum(parts), whole, rtol=1e-11, atol=1e-11)


def test_shares_cover_everything_once_and_evenly():
    for count in (1, 2, 3, 8):
        splits = [Split(rank, count, torch.clone) for rank in range(count)]
        rows = sorted(block for split in splits for block in split.rows(2048))
        assert [stop for _, stop in rows[:-1]] == [start for start, _ in rows[1:]]
        assert (rows[0][0], rows[-1][1]) == (0, 2048)
        areas = [sum((b - a) * b for a, b in split.rows(2048)) for split in splits]
        assert max(areas) < 1.01 * min(areas)
        bounds = [split.bounds(100) for split in splits]
        assert bounds[0][0] == 0
        assert bounds[-1][1] == 100


def test_small_matrices_and_single_processes_share_nothing(monkeypatch):
    monkeypatch.setattr(module, "WORTH_SHARING", 512)
    assert not is_shared(511, Split(0, 2, torch.clone))
    assert is_shared(512, Split(0, 2, torch.clone))
    assert not is_shared(512, Split(0, 1, torch.clone))
    assert not is_shared(512, None)
