"""One set of checks for every kernel and every layer."""

import copy
import pickle

import pytest
import torch
from torch.func import functional_call

from gramian import GramBlocks
from tests.samples import (
    ALL_STEPS,
    GRAM_STEPS,
    KERNEL_STEPS,
    NORM_STEPS,
    SPACE,
    P,
    flatten,
    random_,
    random_gram,
)

every_step = pytest.mark.parametrize("name", ALL_STEPS)


def step_and_gram(name: str, dtype=torch.float64, seed: int = 0):
    return random_(ALL_STEPS[name]()).to(dtype), random_gram(P, (3, *SPACE), seed, dtype)


@every_step
def test_shapes_and_dtype_are_kept(name):
    for dtype in (torch.float32, torch.float64):
        step, gram = step_and_gram(name, dtype)
        out = step(gram)
        assert out.ii.dtype == out.ti.dtype == out.tt_diag.dtype == dtype
        assert out.ti.shape == (*out.tt_diag.shape, len(out.ii))
        assert len(out.tt_diag) == 3


@every_step
def test_float32_is_close_to_float64(name):
    """These blocks are well conditioned, so single precision must give five digits."""
    step, gram = step_and_gram(name)
    exact = step(gram)
    single = step.float()(GramBlocks(*(block.float() for block in flatten(gram))))
    for low, high in zip(flatten(single), flatten(exact), strict=True):
        error = (low.double() - high).abs().max() / high.abs().max()
        assert error < 2e-5


@every_step
def test_joint_matrix_stays_positive_semidefinite(name):
    """[[ii, it], [ti, tt]] of all inducing points and any one data point."""
    step, gram = step_and_gram(name)
    out = GramBlocks(*(block.detach() for block in flatten(step(gram)))).flat()
    for ti, tt in zip(out.ti, out.tt_diag, strict=True):
        joint = torch.cat([torch.cat([out.ii, ti[:, None]], 1), torch.cat([ti, tt[None]])[None]])
        eigenvalues = torch.linalg.eigvalsh((joint + joint.mT) / 2)
        assert eigenvalues[0] > -1e-12 * eigenvalues[-1]


@pytest.mark.parametrize(
    "name", [name for name in ALL_STEPS if name not in ("norm_global_batch", "norm_location_batch")]
)
def test_a_batch_equals_its_items(name):
    """All but those whose definition is a mean over the batch."""
    step, gram = step_and_gram(name)
    whole = step(gram)
    for b in range(3):
        single = step(GramBlocks(gram.ii, gram.ti[b : b + 1], gram.tt_diag[b : b + 1]))
        torch.testing.assert_close(single.ti[0], whole.ti[b], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(single.tt_diag[0], whole.tt_diag[b], rtol=1e-12, atol=1e-12)


@every_step
def test_gradients_are_right(name):
    """gradcheck by the inputs and by all parameters."""
    step, gram = step_and_gram(name)
    names, values = (
        zip(*step.named_parameters(), strict=True) if list(step.parameters()) else ((), ())
    )

    def run(ii, ti, tt_diag, *parameters):
        symmetric = GramBlocks((ii + ii.mT) / 2, ti, tt_diag)
        return flatten(functional_call(step, dict(zip(names, parameters, strict=True)), symmetric))

    inputs = [block[:1] if block.ndim > 2 else block for block in flatten(gram)]
    leaves = [leaf.detach().clone().requires_grad_() for leaf in [*inputs, *values]]
    assert torch.autograd.gradcheck(run, leaves, atol=1e-6)


@every_step
def test_state_dict_round_trip_is_bit_equal(name):
    step, gram = step_and_gram(name)
    fresh = ALL_STEPS[name]().double().train(step.training)
    fresh.load_state_dict(step.state_dict())
    for other in (fresh, copy.deepcopy(step), pickle.loads(pickle.dumps(step))):
        other.train(step.training)
        for a, b in zip(flatten(other(gram)), flatten(step(gram)), strict=True):
            assert torch.equal(a, b)


@every_step
def test_forward_changes_neither_inputs_nor_buffers(name):
    step, gram = step_and_gram(name)
    before = [block.clone() for block in flatten(gram)]
    state = copy.deepcopy(step.state_dict())
    step(gram)
    assert all(torch.equal(a, b) for a, b in zip(flatten(gram), before, strict=True))
    assert all(torch.equal(step.state_dict()[key], value) for key, value in state.items())


@every_step
def test_repr_is_readable(name):
    text = repr(ALL_STEPS[name]())
    assert "object at 0x" not in text


@pytest.mark.parametrize("name", [*KERNEL_STEPS, *NORM_STEPS, "gram_nngp", "pool_mean"])
def test_permuting_inducing_points_permutes_the_answer(name):
    step, gram = ALL_STEPS[name]().double(), random_gram(P, (3, *SPACE), 0)
    order = torch.tensor([2, 0, 3, 1])
    out = step(gram)
    permuted = step(GramBlocks(gram.ii[order][:, order], gram.ti[..., order], gram.tt_diag))
    torch.testing.assert_close(permuted.ii, out.ii[order][:, order])
    torch.testing.assert_close(permuted.ti, out.ti[..., order])
    torch.testing.assert_close(permuted.tt_diag, out.tt_diag)


@pytest.mark.parametrize("name", GRAM_STEPS)
def test_every_gram_step_needs_a_positive_definite_kernel(name):
    from gramian import NotPSDError

    gram = random_gram(P, (3, *SPACE), 0)
    with pytest.raises(NotPSDError, match="K_ii"):
        ALL_STEPS[name]().double()(GramBlocks(-gram.ii, gram.ti, gram.tt_diag))
