import re

import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d, cross_entropy, linear
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from gramian.gram.fast.congruence import congruence, symmetric_product
from gramian.gram.fast.passes import project
from gramian.gram.linalg import cholesky, solve_lower
from gramian.nn.baseline.resnet import ResNet
from gramian.train.config import ConfigError
from gramian.train.record.run_folder import RunFolder
from gramian.train.runtime.engine import Engine
from gramian.train.runtime.signals import Stopped
from gramian.train.runtime.tf32 import FACTORS, allow_tf32, emulate_tf32, round_to_tf32
from tests.train.test_trainer import stop_after
from tests.train.tiny import (
    assert_same_weights,
    can_emulate_tf32,
    config,
    needs_tf32_emulation,
    trainer,
    weights,
)

aten = torch.ops.aten


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- rounding ----


def oracle(x: np.ndarray) -> np.ndarray:
    """The nearest multiple of the spacing of TF32 at x, computed in float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        exact = x.astype(np.float64)
        _, exponent = np.frexp(exact)  # |x| in [2^(e-1), 2^e)
        spacing = np.ldexp(1.0, np.maximum(exponent - 1, -126) - 10)
        nearest = (np.rint(exact / spacing) * spacing).astype(np.float32)
    return np.where(np.isfinite(x), nearest, x)


def bits(*values):
    return torch.tensor(values, dtype=torch.uint32).view(torch.float32)


def test_rounding_of_all_kinds_of_numbers():
    draw = torch.Generator().manual_seed(0)
    any_bits = torch.randint(-(2**31), 2**31, (200_000,), generator=draw, dtype=torch.int32)
    high = any_bits & ~0x1FFF
    for low in (0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF):  # 0x1000: ties
        x = (high | low).view(torch.float32)
        rounded = round_to_tf32(x)
        np.testing.assert_array_equal(rounded, oracle(x.numpy()))
        assert torch.equal(rounded.signbit(), x.signbit())
    x = any_bits.view(torch.float32)
    np.testing.assert_array_equal(round_to_tf32(x), oracle(x.numpy()))
    finite = x[x.isfinite()]
    np.testing.assert_array_equal(round_to_tf32(finite), oracle(finite.numpy()))


def test_subnormal_numbers():
    x = torch.arange(-70_000, 70_000).to(torch.int32).abs().view(torch.float32)
    for sign in (1, -1):
        np.testing.assert_array_equal(round_to_tf32(sign * x), oracle((sign * x).numpy()))
    tie_down, tie_up = round_to_tf32(bits(0x1000, 0x3000))  # of 2⁻¹³⁶: a half, and one and a half
    assert (tie_down.item(), tie_up.item()) == (0.0, 2.0**-135)


@pytest.mark.parametrize(
    ("x", "rounded"),
    [
        (1 + 2.0**-11, 1.0),  # ties to even, down
        (1 + 3 * 2.0**-11, 1 + 2.0**-9),  # and up
        (1 + 2.0**-11 + 2.0**-23, 1 + 2.0**-10),
        (2 - 2.0**-12, 2.0),  # a carry into the exponent
        (0.1, 0.0999755859375),
        (torch.finfo(torch.float32).max, torch.inf),
        (torch.finfo(torch.float32).min, -torch.inf),
        ((2 - 2.0**-10) * 2.0**127, (2 - 2.0**-10) * 2.0**127),  # the largest of TF32
        (-torch.inf, -torch.inf),
    ],
)
def test_rounding_of_some_numbers(x, rounded):
    assert round_to_tf32(torch.tensor(x)).item() == rounded


def test_every_nan_stays_one_beside_what_is_finite():
    x = bits(0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001, 0x3F801000, 0x7F800000)
    rounded = round_to_tf32(x)
    assert rounded.isnan().tolist() == [True] * 5 + [False] * 2
    assert rounded[5:].tolist() == [1.0, torch.inf]


def test_rounding_is_out_of_place_and_keeps_shape_and_memory_layout():
    x = randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    before = x.clone()
    assert round_to_tf32(x).stride() == x.stride()
    assert torch.equal(x, before)
    part = randn(6, 8).T[::2, 1:]
    assert torch.equal(round_to_tf32(part), round_to_tf32(part.contiguous()))
    assert round_to_tf32(torch.empty(0, 3)).shape == (0, 3)


# ---- products ----

A, B, C, V = randn(5, 6), randn(6, 7, seed=1), randn(5, 7, seed=2), randn(6, seed=3)
A3, B3, C3 = randn(3, 5, 6, seed=4), randn(3, 6, 7, seed=5), randn(3, 5, 7, seed=6)
IMAGES, FILTERS = randn(2, 3, 8, 8), randn(4, 3, 3, 3, seed=1)
CHANNELS_LAST = IMAGES.to(memory_format=torch.channels_last)

PRODUCTS = {
    "mm": (torch.mm, [A, B], [0, 1]),
    "mm out": (lambda a, b: torch.mm(a, b, out=torch.empty(5, 7)), [A, B], [0, 1]),
    "matmul": (lambda a, b: a @ b, [A3, B], [0, 1]),
    "einsum": (lambda a, b: torch.einsum("nij,njk->nik", a, b), [A3, B3], [0, 1]),
    "linear": (linear, [A, B.T, C[0]], [0, 1]),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.3, alpha=1.7), [C, A, B], [1, 2]),
    "addmm_": (lambda c, a, b: c.clone().addmm_(a, b), [C, A, B], [1, 2]),
    "addmm out": (lambda c, a, b: torch.addmm(c, a, b, out=c.clone()), [C, A, B], [1, 2]),
    "bmm": (torch.bmm, [A3, B3], [0, 1]),
    "baddbmm": (torch.baddbmm, [C3, A3, B3], [1, 2]),
    "baddbmm_": (lambda c, a, b: c.clone().baddbmm_(a, b), [C3, A3, B3], [1, 2]),
    "addbmm": (torch.addbmm, [C, A3, B3], [1, 2]),
    "mv": (torch.mv, [A, V], [0, 1]),
    "addmv": (torch.addmv, [C[:, 0], A, V], [1, 2]),
    "addmv_": (lambda c, a, v: c.clone().addmv_(a, v), [C[:, 0], A, V], [1, 2]),
    "dot": (torch.dot, [V, A[0]], [0, 1]),
    "conv2d": (lambda x, w: conv2d(x, w, stride=2, padding=1), [IMAGES, FILTERS], [0, 1]),
    "conv2d, channels last": (conv2d, [CHANNELS_LAST, FILTERS], [0, 1]),
    "conv2d with a bias": (conv2d, [IMAGES, FILTERS, V[:4]], [0, 1]),
}


@needs_tf32_emulation
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("inference", [False, True])
def test_a_product_inside_is_that_of_rounded_factors_bit_for_bit(name, inference):
    product, arguments, factors = PRODUCTS[name]
    with emulate_tf32(), torch.inference_mode(inference):
        inside = product(*arguments)
    rounded = [round_to_tf32(a) if i in factors else a for i, a in enumerate(arguments)]
    assert torch.equal(inside, product(*rounded))
    assert not torch.equal(inside, product(*arguments))


@needs_tf32_emulation
@pytest.mark.parametrize("name", ["mm", "matmul", "addmm", "bmm", "conv2d"])
def test_gradients_are_products_of_rounded_factors_too(name):
    product, arguments, factors = PRODUCTS[name]

    def gradients(values, upstream):
        leaves = [value.clone().requires_grad_() for value in values]
        product(*leaves).backward(upstream)
        return [leaf.grad for leaf in leaves]

    upstream = randn(*product(*arguments).shape, seed=4)
    with emulate_tf32():
        inside = gradients(arguments, upstream)
    rounded = [round_to_tf32(a) if i in factors else a for i, a in enumerate(arguments)]
    by_hand = gradients(rounded, round_to_tf32(upstream))
    outside = gradients(arguments, upstream)
    for i in factors:
        assert torch.equal(inside[i], by_hand[i])
        assert not torch.equal(inside[i], outside[i])


@needs_tf32_emulation
def test_nothing_else_changes():
    plain = A @ B
    with pytest.raises(KeyError), emulate_tf32():
        raise KeyError
    assert torch.equal(A @ B, plain)
    S = (A @ A.T) + torch.eye(5)
    outside = [A * V, A.sum(0), A.double() @ B.double(), cholesky(S, "S"), solve_lower(S, A)]
    with emulate_tf32():
        inside = [A * V, A.sum(0), A.double() @ B.double(), cholesky(S, "S"), solve_lower(S, A)]
    assert all(torch.equal(a, b) for a, b in zip(inside, outside, strict=True))


@needs_tf32_emulation
def test_the_written_out_gradients_of_a_pass():
    X, R, dU, de = randn(40, 6), randn(6, 9, seed=1), randn(40, 9, seed=2), randn(40, seed=3)
    leaves = [X.clone().requires_grad_(), R.clone().requires_grad_()]
    with emulate_tf32():
        U, e = project(*leaves)
        torch.autograd.backward([U, e], [dU, de])
    r = round_to_tf32
    U_by_hand = r(X) @ r(R)
    Z = torch.addcmul(dU, U_by_hand, 2 * de[:, None])
    assert torch.equal(U, U_by_hand)
    assert torch.equal(leaves[0].grad, torch.addmm(X * (-2 * de[:, None]), r(Z), r(R).mT))
    assert torch.equal(leaves[1].grad, r(X).mT @ r(Z))


@needs_tf32_emulation
def test_the_written_out_gradients_of_a_congruence():
    C, Phi, dK = randn(5, 9, 4), randn(4, 4, seed=1), randn(5, 5, seed=2)
    Phi = Phi + Phi.T
    leaves = [C.clone().requires_grad_(), Phi.clone().requires_grad_()]
    with emulate_tf32():
        K = congruence(*leaves)
        K.backward(dK)
    r = round_to_tf32
    C_Phi = r(C.flatten(0, 1)) @ r(Phi)
    S = (dK + dK.mT) / 9
    S_C = r(S) @ r(C.flatten(1))
    assert torch.equal(K, r(C_Phi.view(5, 36)) @ r(C.flatten(1)).mT / 9)
    assert torch.equal(leaves[0].grad.flatten(1), r(S) @ r(C_Phi.view(5, 36)))
    assert torch.equal(leaves[1].grad, r(C.flatten(0, 1)).mT @ r(S_C.view(45, 4)) / 2)


@needs_tf32_emulation
def test_a_large_symmetric_product():
    A = randn(512, 3)
    with emulate_tf32():
        inside = symmetric_product(A, A)
    assert torch.equal(inside, symmetric_product(round_to_tf32(A), round_to_tf32(A)))


# ---- no product is forgotten ----


class Record(TorchDispatchMode):
    """Notes every operation."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(func.overloadpacket)
        return func(*args, **(kwargs or {}))


def is_product(op) -> bool:
    """Whether torch counts its FLOPs, or those of its twin that is not in place; or by its name."""
    counted = {getattr(known, "__name__", "") for known in flop_registry}
    name, words = (
        op.__name__,
        r"(^|_)(add|badd|addb|b|v)?(mm|mv|dot)(_|$)|conv|linear|matmul|bmm|attention",
    )
    return name in counted or name.rstrip("_") in counted or bool(re.search(words, name))


def test_every_product_of_a_run_of_a_deep_kernel_machine_is_covered():
    with Record() as record:
        trainer(config(max_epochs=1)).fit()
    products = {op for op in record.seen if is_product(op)}
    assert {aten.mm, aten.addmm_, aten.mv, aten.convolution, aten.convolution_backward} <= products
    assert products <= set(FACTORS)
    assert aten.linalg_cholesky_ex in record.seen - products


def test_every_product_of_a_step_of_the_network_is_covered():
    network = ResNet((1, 8, 8), 10, widths=(4, 8), blocks_per_stage=1, strides=(1, 2))
    with Record() as record:
        cross_entropy(network(randn(3, 1, 8, 8)), torch.arange(3)).backward()
    products = {op for op in record.seen if is_product(op)}
    assert {aten.mm, aten.addmm, aten.convolution, aten.convolution_backward} <= products
    assert products <= set(FACTORS)


# ---- training ----

EMULATED = {"precision": "tf32-emulated", "max_epochs": 2}


@pytest.fixture(scope="module")
def emulated():
    if not can_emulate_tf32:
        pytest.skip("tf32-emulated needs PyTorch 2.9")
    run = trainer(config(**EMULATED))
    run.fit()
    return run


def test_a_run_has_other_numbers_than_float32_but_like_ones(emulated):
    plain = trainer(config(max_epochs=2))
    plain.fit()
    assert emulated.model.dtype == torch.float32
    for row, other in zip(emulated.rows, plain.rows, strict=True):
        for key in ("objective", "test_log_likelihood"):  # training and evaluation
            assert row[key] != other[key]
            assert row[key] == pytest.approx(other[key], abs=0.1)


def test_an_old_torch_is_refused(monkeypatch):
    monkeypatch.delattr(torch.library, "get_kernel", raising=False)
    with pytest.raises(ConfigError, match=r"tf32-emulated needs PyTorch 2\.9"):
        Engine(precision="tf32-emulated")


def test_a_run_is_deterministic_and_leaves_no_kernel_behind(emulated):
    again = trainer(config(**EMULATED))
    again.fit()
    assert_same_weights(weights(again), weights(emulated))
    assert not torch.equal(A @ B, round_to_tf32(A) @ round_to_tf32(B))


def test_recomputed_activations_are_rounded_alike(emulated):
    run = trainer(config(recompute_activations=True, **EMULATED))
    run.fit()
    assert_same_weights(weights(run), weights(emulated))


def test_a_stopped_run_resumes_bit_exactly(tmp_path, emulated):
    first = trainer(config(**EMULATED), RunFolder(tmp_path))
    stop_after(first, 4)
    with pytest.raises(Stopped):
        first.fit()
    second = trainer(config(**EMULATED), RunFolder(tmp_path))
    second.fit()
    assert second.resumed
    assert_same_weights(weights(second), weights(emulated))


def test_tf32_is_allowed_for_a_time():
    def state():
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    before = state()
    with allow_tf32():
        assert state() == ("high", True)
    assert state() == before
