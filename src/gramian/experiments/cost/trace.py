"""Operations, memory traffic and live memory of code that runs on tensors without storage.

On the device ``meta`` a tensor has a shape and no values. All operations of a training step still
happen, in the order they would have on a GPU, and are counted here as they pass by:

- FLOPs, by ``cost.flops``, those of factorisations and triangular solves apart;
- the bytes that all other operations read and write, each by itself: nothing is fused;
- the bytes of all tensors that exist, and the most there were: a storage counts from the operation
  that makes it until nothing refers to it. Workspaces of libraries and gaps between tensors, which
  a real allocator has too, are not seen.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gramian.experiments.cost.flops import Healthy, flop_counter

aten = torch.ops.aten
SOLVES = {aten.linalg_cholesky_ex, aten.linalg_solve_triangular}
"""FLOPs that tensor cores are not for."""

VECTOR_PRODUCTS = {aten.mv, aten.addmv, aten.addmv_, aten.dot}
"""Products whose time is that of reading the matrix."""

ALLOCATIONS = {aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided}


class Trace(TorchDispatchMode):
    """Counts while it is entered; ``traced`` enters it together with all that it needs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0  # that do something: views and allocations do not
        self.pass_bytes = 0  # read and written by all but products, convolutions and solves
        self.live_bytes = 0
        self.peak_bytes = 0
        self._sizes: dict[int, int] = {}  # of live storages, by address
        self._flops = Counter[Any]()  # by operation
        self._formulas = flop_counter().flop_registry

    @property
    def solve_flops(self) -> int:
        """FLOPs of factorisations and triangular solves."""
        return sum(flops for packet, flops in self._flops.items() if packet in SOLVES)

    @property
    def product_flops(self) -> int:
        """FLOPs of products and convolutions."""
        return sum(flops for packet, flops in self._flops.items() if packet not in SOLVES)

    def reset(self) -> None:
        """Count from here on; what is live stays live."""
        self.operations = self.pass_bytes = 0
        self.peak_bytes = self.live_bytes
        self._flops.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Do it, and count."""
        result = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        formula = self._formulas.get(packet)
        if formula is not None:
            self._flops[packet] += formula(*args, **(kwargs or {}), out_val=result)
        if packet is aten.convolution:
            result = _laid_out(result, args[0], args[1])
        results = _tensors(result)
        made = [self._note(tensor) for tensor in results]
        if packet not in ALLOCATIONS and (any(made) or func._schema.is_mutable):
            self.operations += 1
            if packet in VECTOR_PRODUCTS or formula is None:
                self.pass_bytes += sum(map(_bytes, [*_tensors((args, kwargs)), *results]))
        return result

    def _note(self, tensor: Tensor) -> bool:
        """Count a tensor's storage from now on; False if it is counted already."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._sizes:
            return False
        self._sizes[address] = storage.nbytes()
        self.live_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._forget, address).atexit = False
        return True

    def _forget(self, address: int) -> None:
        self.live_bytes -= self._sizes.pop(address)


@contextmanager
def traced() -> Iterator[Trace]:
    """Tensors made inside have no storage, and what happens to them is counted."""
    trace = Trace()
    with torch.device("meta"), Healthy(), trace:
        yield trace


def _laid_out(maps: Tensor, *operands: Tensor) -> Tensor:
    """The result of a convolution with channels last if an operand has them so, as by cuDNN.

    On the device ``meta`` channels come first, and copies would follow that no GPU makes.
    """
    last = torch.channels_last
    if any(t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in operands):
        return torch.empty_like(maps, memory_format=last)
    return maps


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _bytes(tensor: Tensor) -> int:
    """Of its entries, or of its storage where entries share memory."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
