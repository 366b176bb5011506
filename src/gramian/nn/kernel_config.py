"""Settings of kernels, which all models share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gramian.nn.kernels import KERNELS, Jitter, Kernel


@dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """The kernels of a model, each with parameters of its own.

    Args:
        kernel: a name in ``KERNELS``.
        weight_var: start value of each kernel's learned weight variance; None fixes it at 1.
        bias_var: start value of each kernel's learned bias variance; None leaves it out.
        kernel_jitter: inflation of the kernels' diagonals.
    """

    kernel: str = "normalized_gaussian"
    weight_var: float | None = 1.0
    bias_var: float | None = 0.1
    kernel_jitter: Jitter = Jitter()

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        known = self.known_kernels()
        if self.kernel not in known:
            raise ValueError(f"unknown kernel {self.kernel!r}; known are {sorted(known)}")

    @classmethod
    def known_kernels(cls) -> dict[str, Callable[..., Kernel]]:
        """What ``kernel`` may name."""
        return KERNELS

    def build_kernel(self) -> Kernel:
        """A kernel with parameters of its own."""
        build = self.known_kernels()[self.kernel]
        return build(self.weight_var, self.bias_var, self.kernel_jitter)
