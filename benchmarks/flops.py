"""Floating-point operations of matrix products, convolutions, factorisations and solves.

PyTorch's counter knows products and convolutions. Added here are what it leaves out: products that
add to a matrix in place, products with vectors, Cholesky factors and triangular solves. What works
entry by entry is not counted.

A count needs shapes and no values, so a model that fits no memory can be counted on tensors without
storage:

    with torch.device("meta"), Healthy():  # or FakeTensorMode(), Healthy()
        model = …
        flops = count_flops(lambda: step(model))
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.weak import WeakTensorKeyDictionary

aten = torch.ops.aten
Shape = tuple[int, ...]


def count_flops(function: Callable[[], object]) -> int:
    """FLOPs of one call."""
    with flop_counter() as counter:
        function()
    return int(counter.get_total_flops())


def flop_counter() -> FlopCounterMode:
    """A context that counts; ``get_total_flops()`` says how many there were so far."""
    return FlopCounterMode(display=False, custom_mapping=FORMULAS)


def product_flops(a: Shape, b: Shape, *_: object, **__: object) -> int:
    """2·n·k·m for [*, n, k] times [*, k, m], and 2·n·k for a vector."""
    return 2 * prod(a) * (b[-1] if len(b) > 1 else 1)


def added_product_flops(_: Shape, a: Shape, b: Shape, *__: object, **___: object) -> int:
    """A product that is added to something; the addition is not counted."""
    return product_flops(a, b)


def cholesky_flops(matrix: Shape, *_: object, **__: object) -> int:
    """P³/3 per matrix."""
    *layers, P, _P = matrix
    return prod(layers) * P**3 // 3


def triangular_solve_flops(matrix: Shape, right: Shape, *_: object, **__: object) -> int:
    """P² per right-hand side."""
    return matrix[-1] * prod(right)


FORMULAS: dict[Any, Callable[..., int]] = {
    aten.addmm_: added_product_flops,
    aten.baddbmm_: added_product_flops,
    aten.mv: product_flops,
    aten.addmv: added_product_flops,
    aten.addmv_: added_product_flops,
    aten.dot: product_flops,
    aten.linalg_cholesky_ex: cholesky_flops,
    aten.linalg_solve_triangular: triangular_solve_flops,
}
"""By operation, of the shapes of its arguments."""


class Healthy(TorchDispatchMode):
    """Answers questions about values, which tensors without values cannot, as all were well.

    Checks ask whether any number is bad (no), whether all are good (yes), and how many failed (0).
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._denied = WeakTensorKeyDictionary()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Answer, or pass on."""
        if func is aten._local_scalar_dense.default:
            question: Tensor = args[0]
            return question not in self._denied if question.dtype is torch.bool else 0
        result = func(*args, **(kwargs or {}))
        if func._overloadpacket is aten.any:
            self._denied[result] = True
        return result
