import pickle

import pytest
import torch

from gramian import NegativeVarianceError, NotPSDError, VarianceCheck
from gramian.gram.errors import deferred_checks, within
from gramian.gram.linalg import (
    cholesky,
    cholesky_of_each,
    condition_number,
    mean_and_std,
    solve_lower,
    solve_upper,
)
from tests.samples import random_psd


def test_factors_and_solves():
    K = random_psd(5, 0)
    L = cholesky(K, what="K_ii")
    B = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(L @ L.mT, K)
    torch.testing.assert_close(solve_upper(L, solve_lower(L, B)), torch.linalg.solve(K, B))


def test_condition_number_is_that_of_the_eigenvalues():
    assert condition_number(torch.diag(torch.tensor([1e-3, 1.0, 10.0]))) == pytest.approx(1e4)


def test_mean_and_deviation_count_rows_by_their_weights():
    """A row without weight is not there; a column of one value has the deviation 1."""
    rows = torch.tensor([[5.0, -1.0], [1.0, 3.0], [1.0, 3.0], [4.0, 3.0]])
    mean, std = mean_and_std(rows[1:], torch.tensor([2.0, 0.0, 1.0]))
    torch.testing.assert_close(mean, torch.tensor([2.0, 3.0], dtype=torch.float64))
    torch.testing.assert_close(std, torch.tensor([2**0.5, 1.0], dtype=torch.float64))
    mean, std = mean_and_std(rows, torch.tensor([0.0, 1.0, 1.0, 1.0]))
    expected = rows[1:].double().std(0, correction=0) + torch.tensor([0.0, 1.0])
    torch.testing.assert_close((mean, std), (rows[1:].double().mean(0), expected))
    plain = rows.double().mean(0), rows.double().std(0, correction=0)
    torch.testing.assert_close(mean_and_std(rows), plain)


def test_a_matrix_that_is_not_positive_definite_explains_itself():
    K = torch.diag(torch.tensor([1.0, 2.0, -3.0]))
    with (
        pytest.raises(NotPSDError) as caught,
        within("stage2_block1"),
        within("layer1"),
    ):
        cholesky(K, what="K_ii")
    error = caught.value
    assert error.layer == "stage2_block1.layer1"
    assert (error.failing_minor, error.smallest_eigenvalue) == (3, -3.0)
    for part in ("stage2_block1.layer1", "K_ii", "3×3", "float32", "order 3", "-3", "jitter"):
        assert part in str(error)


def test_nan_is_named():
    with pytest.raises(NotPSDError, match="contains NaN or infinity"):
        cholesky(torch.full((2, 2), torch.nan), what="K_ii")


def test_errors_survive_a_process_boundary():
    error = NegativeVarianceError(2, 10, -0.5, -1e-10)
    error.layer = "stem"
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.layer, copy.count) == (str(error), "stem", 2)
    assert "2 of 10" in str(copy)


def test_variance_check_raises_beyond_the_threshold():
    check = VarianceCheck()
    variance = torch.tensor([1.0, 0.0, -1e-11])
    same, clamped = check(variance)
    assert torch.equal(same, variance)
    assert clamped == 0
    with pytest.raises(NegativeVarianceError, match=r"1 of 3 .*smallest -0\.2.*clamp=True") as e:
        check(torch.tensor([1.0, -0.2, 0.5]))
    assert e.value.smallest == pytest.approx(-0.2)
    VarianceCheck(threshold=-1.0)(torch.tensor([-0.2]))


def test_variance_check_clamps_and_counts_only_when_asked():
    clamped, count = VarianceCheck(clamp=True)(torch.tensor([1.0, -0.2, -3.0]))
    assert torch.equal(clamped, torch.tensor([1.0, 0.0, 0.0]))
    assert count == 2


@pytest.mark.parametrize("clamp", [False, True])
def test_nan_variance_is_never_let_through(clamp):
    with pytest.raises(NegativeVarianceError, match="1 of 2 variances are NaN"):
        VarianceCheck(clamp=clamp)(torch.tensor([1.0, torch.nan]))


def test_deferred_checks_give_nan_where_there_would_be_an_error():
    """And leave alone what is right."""
    good, bad = torch.eye(3), torch.diag(torch.tensor([1.0, -1.0, 1.0]))
    variance = torch.tensor([1.0, -0.5])
    with deferred_checks():
        assert torch.equal(cholesky(good, "K_ii"), good)
        assert cholesky(bad, "K_ii").isnan().all()
        both = cholesky_of_each(torch.stack([good, bad]), ["a", "b"], "K_ii")
        assert torch.equal(both.isnan().all((1, 2)), torch.tensor([False, True]))
        assert VarianceCheck()(variance)[0].isnan().tolist() == [False, True]
        assert VarianceCheck(clamp=True)(variance)[0].tolist() == [1.0, 0.0]
    with pytest.raises(NotPSDError):
        cholesky(bad, "K_ii")
    with pytest.raises(NegativeVarianceError):
        VarianceCheck()(variance)
