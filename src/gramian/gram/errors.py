"""Numerical errors that say where, what and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class NumericalError(ArithmeticError):
    """A computation left the domain where the model means something. ``layer`` says where.

    The layer is found on the way up: each container adds its part of the path with ``within``.
    """

    layer: str = ""

    def __str__(self) -> str:
        return f"{self.layer or 'unnamed layer'}: {self.reason()}"

    def reason(self) -> str:
        """What happened and which setting helps."""
        return super().__str__()


class NotPSDError(NumericalError):
    """A matrix that must be positive definite is not, at this precision."""

    def __init__(
        self, what: str, dtype: str, size: int, failing_minor: int, smallest_eigenvalue: float
    ) -> None:
        super().__init__(what, dtype, size, failing_minor, smallest_eigenvalue)
        self.what = what
        self.dtype = dtype
        self.size = size
        self.failing_minor = failing_minor
        self.smallest_eigenvalue = smallest_eigenvalue

    def reason(self) -> str:
        """Name the matrix, its smallest eigenvalue and the remedy."""
        if self.smallest_eigenvalue != self.smallest_eigenvalue:
            return (
                f"{self.what} ({self.size}×{self.size}, {self.dtype}) contains NaN or infinity. "
                "Check the inputs, or lower the learning rate."
            )
        return (
            f"{self.what} ({self.size}×{self.size}, {self.dtype}) is not positive definite: its "
            f"leading minor of order {self.failing_minor} fails and its smallest eigenvalue is "
            f"{self.smallest_eigenvalue:.3g}. Raise the kernel jitter or SKR.jitter, raise nu, "
            "lower the learning rate, or use float64."
        )


class NegativeVarianceError(NumericalError):
    """Conditional variances came out negative beyond the threshold, or NaN."""

    def __init__(self, count: int, total: int, smallest: float, threshold: float) -> None:
        super().__init__(count, total, smallest, threshold)
        self.count = count
        self.total = total
        self.smallest = smallest
        self.threshold = threshold

    def reason(self) -> str:
        """Count the bad entries, show the smallest and name the remedy."""
        return (
            f"{self.count} of {self.total} variances are not above {self.threshold:g} "
            f"(smallest {self.smallest:.3g}). K_ii is too badly conditioned for this precision: "
            "raise SKR.jitter or the kernel jitter, raise nu, use float64, or allow clamping "
            "with VarianceCheck(clamp=True)."
        )


class NonFiniteError(NumericalError):
    """The objective or a gradient is NaN or infinite."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def reason(self) -> str:
        """Name what is not finite and the remedy."""
        return (
            f"{self.what} is not finite. Lower the learning rate, raise nu or SKR.jitter, "
            "or use float64."
        )


@contextmanager
def within(layer: str) -> Iterator[None]:
    """Put ``layer`` in front of the path of a numerical error that passes through."""
    try:
        yield
    except NumericalError as error:
        error.layer = f"{layer}.{error.layer}" if error.layer else layer
        raise
