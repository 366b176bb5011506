"""Operations, memory traffic and live memory of code that runs on tensors without storage.

On the device ``meta`` a tensor has a shape and no values. All operations of a training step still
happen, in the order they would have on a GPU, and are counted here as they pass by:

- FLOPs, by ``cost.flops``, those of factorisations and triangular solves apart;
- the bytes that all other operations read and write, each by itself; or, where code is compiled,
  those of a kernel for each chain of element-wise operations and the sums at its end, which reads
  what comes from elsewhere and writes what lives on;
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

from benchmarks.flops import Healthy, flop_counter

aten = torch.ops.aten
SOLVES = {aten.linalg_cholesky_ex, aten.linalg_solve_triangular}
"""FLOPs that tensor cores are not for."""

VECTOR_PRODUCTS = {aten.mv, aten.addmv, aten.addmv_, aten.dot}
"""Products whose time is that of reading the matrix."""

SUMS = {aten.sum, aten.mean, aten.linalg_vector_norm, aten.mv, aten.addmv, aten.addmv_}
"""What a compiler fuses with the element-wise operations before it."""

ALLOCATIONS = {aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided}


class Trace(TorchDispatchMode):
    """Counts while it is entered; ``traced`` enters it together with all that it needs."""

    def __init__(self, fused_from: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fused_from = fused_from  # entries of a tensor, from which on its operations are fused
        self._read: dict[int, int] = {}  # bytes by storage, of the kernel under way
        self._written: dict[int, int] = {}
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
        self._read, self._written = {}, {}
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
            operands = _tensors((args, kwargs))
            if packet not in VECTOR_PRODUCTS and formula is not None:
                self.end_kernel()
            elif self._is_fused(func, [*operands, *results]):
                self._add_to_kernel(operands, results, func)
            else:
                self.pass_bytes += sum(map(_bytes, [*operands, *results]))
        return result

    def end_kernel(self) -> None:
        """Count what the fused kernel under way has read, and of what it has made, what lives."""
        self.pass_bytes += sum(self._read.values())
        self.pass_bytes += sum(size for at, size in self._written.items() if at in self._sizes)
        self._read, self._written = {}, {}

    def _is_fused(self, func: Any, tensors: list[Tensor]) -> bool:
        """Element-wise operations on large tensors, and sums over them."""
        if self.fused_from is None or max(t.numel() for t in tensors) < self.fused_from:
            return False
        return torch.Tag.pointwise in func.tags or func._overloadpacket in SUMS

    def _add_to_kernel(self, operands: list[Tensor], results: list[Tensor], func: Any) -> None:
        new = {t.untyped_storage()._cdata for t in results}
        for tensor in operands:
            at = tensor.untyped_storage()._cdata
            if at not in self._written and at not in new:
                self._read[at] = max(self._read.get(at, 0), _bytes(tensor))
        for tensor in results:
            at = tensor.untyped_storage()._cdata
            self._written[at] = max(self._written.get(at, 0), _bytes(tensor))
        if func._overloadpacket in SUMS:
            self.end_kernel()

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
def traced(fused_from: int | None = None) -> Iterator[Trace]:
    """Tensors made inside have no storage, and what happens to them is counted.

    With ``fused_from``, chains of element-wise operations on tensors of so many entries are counted
    as one kernel, as compiled code has it.
    """
    trace = Trace(fused_from)
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
