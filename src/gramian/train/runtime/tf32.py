"""TF32 on any device: to count on a CPU what fails numerically on a GPU's tensor cores.

TF32 is float32 with 10 of its 23 explicit mantissa bits. Tensor cores round both factors of a
matrix product or convolution to it, forward and backward, and add the products up in float32.

What is emulated is torch with TF32 allowed, in every product. The real thing differs in this:

- Matrix-vector products, and products inside the gradient of a Cholesky factor, stay float32 on
  CUDA: torch turns TF32 off in them. Here they are rounded too, so this errs on the rough side.
- Factorisations stay float32, here and there: cuSOLVER does not see torch's switch. So do
  triangular solves here; on CUDA cuBLAS gets the switch and does not say what it does with it.
- Ties go to even here, as in IEEE 754, and away from zero in the conversion of early GPUs; sums
  are of float32 here, and are rounded in their own way in a tensor core.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float32
from torch import DispatchKey, Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.library import _scoped_library

aten = torch.ops.aten

FACTORS: dict[OpOverloadPacket, tuple[int, ...]] = {
    **dict.fromkeys([aten.mm, aten.bmm, aten.mv, aten.dot, aten.vdot, aten.linear], (0, 1)),
    **dict.fromkeys([aten.addmm, aten.addmm_, aten._addmm_activation], (1, 2)),
    **dict.fromkeys([aten.baddbmm, aten.baddbmm_, aten.addbmm, aten.addbmm_], (1, 2)),
    **dict.fromkeys([aten.addmv, aten.addmv_], (1, 2)),
    **dict.fromkeys([aten.convolution, aten._convolution, aten.mkldnn_convolution], (0, 1)),
    aten.convolution_backward: (0, 1, 2),  # the output's gradient, the input, the weight
}
"""Which arguments of an operation are factors; what a product is added to is not rounded.

All other products (matmul, einsum, conv2d, …) are made of these. The gradient of a convolution's
bias is a sum of the rounded gradient of the output; no model here has such a bias.
"""


def round_to_tf32(x: Float32[Tensor, "*shape"]) -> Float32[Tensor, "*shape"]:
    """``x`` with 10 explicit mantissa bits: the nearest, of two as near the one with an even bit.

    Infinities and NaNs stay, zeros keep their sign, and subnormal numbers are rounded to multiples
    of 2⁻¹³⁶. What rounds up beyond the largest float32 becomes infinite, as in hardware.

    Of the bits b of x as an integer, the last 13 go: b + 0xFFF + (bit 13 of b), without them. A
    carry into the exponent is what a mantissa that rounds up to 2 needs.
    """
    bits = x.view(torch.int32)
    shifted = bits << 18  # bit 13 is the sign, so that this is far below −0x1000, or not negative
    rounded = torch.sub(bits, shifted.clamp_(-0x1000, -0xFFF), out=shifted)
    result = rounded.bitwise_and_(-0x2000).view(torch.float32)
    if math.isnan(x.sum().item()):  # a NaN's bits may carry over into the sign; a sum is cheap
        return torch.where(x.isnan(), x, result)
    return result


@contextmanager
def allow_tf32() -> Iterator[None]:
    """Inside, CUDA multiplies float32 matrices in TF32; outside, it is as it was."""
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions


@contextmanager
def emulate_tf32(device: str = "cpu") -> Iterator[None]:
    """Inside this context every product of float32 tensors on a device is one of rounded factors.

    The products' kernels are replaced, in all threads of the process, so that nothing else is
    slower: a dispatch mode, which sees every operation, gives the same numbers in twice the time.
    """
    with _scoped_library("aten", "IMPL") as library:
        for packet, factors in FACTORS.items():
            for name in packet.overloads():
                product = getattr(packet, name)
                if _has_kernel(product, device):
                    _replace(library, product, factors, device.upper())
        yield


def _has_kernel(product: OpOverload, device: str) -> bool:
    """Whether it is computed as it is, and not as other products."""
    keys = getattr(DispatchKey, device.upper()), DispatchKey.CompositeExplicitAutograd
    return any(map(product.has_kernel_for_dispatch_key, keys))


def _replace(library: Any, product: OpOverload, factors: tuple[int, ...], key: str) -> None:
    kernel = torch.library.get_kernel(product, key)

    def of_rounded(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        args = tuple(_rounded(a) if i in factors else a for i, a in enumerate(args))
        return kernel.call_boxed(keys, *args, **kwargs)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that a kernel is replaced
        library.impl(product, of_rounded, key, with_keyset=True)


def _rounded(factor: Tensor) -> Tensor:
    return round_to_tf32(factor) if factor.dtype == torch.float32 else factor
