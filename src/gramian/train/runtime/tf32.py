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

from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._python_dispatch import TorchDispatchMode

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

All other products (matmul, einsum, conv2d, …) reach a dispatch mode as these. The gradient of a
convolution's bias is a sum of the rounded gradient of the output; no model here has such a bias.
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
    if x.sum().isnan():  # a NaN's bits may carry over into the sign; a sum is cheap to look at
        return torch.where(x.isnan(), x, result)
    return result


class EmulatedTF32(TorchDispatchMode):
    """Inside this context every product of float32 tensors is one of factors rounded to TF32."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Round the factors of a product; leave all else alone."""
        kwargs = kwargs or {}
        factors = FACTORS.get(func.overloadpacket)
        if factors is not None:
            args = tuple(_rounded(a) if i in factors else a for i, a in enumerate(args))
        elif torch.is_inference_mode_enabled():  # there matmul and its like come in one piece
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)


def emulate_tf32() -> EmulatedTF32:
    """A context in which this thread's products, and those of a backward pass, are of TF32."""
    return EmulatedTF32()  # type: ignore[no-untyped-call]


def _rounded(factor: Tensor) -> Tensor:
    return round_to_tf32(factor) if factor.dtype == torch.float32 else factor
