"""Numerical errors that say where, what and what to change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from gramian.explained import Explained

_DEFERRED = ContextVar("checks are deferred", default=False)


class NumericalError(Explained, ArithmeticError):
    """A computation left the domain where the model means something. ``layer`` says where.

    The layer is found on the way up: each container adds its part of the path with ``within``.

    Example:
        >>> from gramian import NegativeVarianceError, NumericalError
        >>> error = NegativeVarianceError(count=1, total=2, smallest=-0.1, threshold=-1e-10)
        >>> error.layer = "stage1_block1.layer2"
        >>> isinstance(error, NumericalError), str(error)[:60]
        (True, 'stage1_block1.layer2: 1 of 2 variances are not above -1e-10 ')
    """

    exit_code = 3
    layer: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.layer or 'unnamed layer'}: {self.reason()}"

    def reason(self) -> str:
        """What happened, and which setting of a training helps."""
        return f"{self.fact()} {self.remedy}".rstrip()

    def fact(self) -> str:
        """What happened."""
        return super().__str__()


class NotPSDError(NumericalError):
    """A matrix that must be positive definite is not, at this precision.

    Attributes:
        what: the matrix, such as K_ii.
        dtype: its precision.
        size: P of P × P.
        failing_minor: order of the first leading minor that is not positive.
        smallest_eigenvalue: of the matrix; NaN if it has entries that are not finite.

    Example:
        >>> import torch
        >>> from gramian import NotPSDError, deep_linear_optimum
        >>> G_0 = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
        >>> try:
        ...     deep_linear_optimum(G_0, torch.eye(2), nu=1.0, num_layers=1)
        ... except NotPSDError as error:
        ...     print(error.what, round(error.smallest_eigenvalue, 3))
        the input Gram matrix -1.0
    """

    def __init__(
        self, what: str, dtype: str, size: int, failing_minor: int, smallest_eigenvalue: float
    ) -> None:
        super().__init__(what, dtype, size, failing_minor, smallest_eigenvalue)
        self.what = what
        self.dtype = dtype
        self.size = size
        self.failing_minor = failing_minor
        self.smallest_eigenvalue = smallest_eigenvalue

        self.remedy = (
            "Check the inputs, or lower the learning rate."
            if math.isnan(smallest_eigenvalue)
            else "Raise the kernel jitter or nu, or use float64; with SKR, raise its jitter; in a "
            "training by gradients, lower the learning rate."
        )

    def fact(self) -> str:
        """Name the matrix and its smallest eigenvalue."""
        matrix = f"{self.what} ({self.size}×{self.size}, {self.dtype})"
        if math.isnan(self.smallest_eigenvalue):
            return f"{matrix} contains NaN or infinity."
        return (
            f"{matrix} is not positive definite: its leading minor of order {self.failing_minor} "
            f"fails and its smallest eigenvalue is {self.smallest_eigenvalue:.3g}."
        )


class NegativeVarianceError(NumericalError):
    """Conditional variances came out negative beyond the threshold, or NaN.

    Attributes:
        count: of the variances that did.
        total: of all.
        smallest: of them.
        threshold: of the ``VarianceCheck``.

    Example:
        >>> import torch
        >>> from gramian import NegativeVarianceError, VarianceCheck
        >>> try:
        ...     VarianceCheck()(torch.tensor([0.5, -0.1]))
        ... except NegativeVarianceError as error:
        ...     print(error.fact())
        1 of 2 variances are not above -1e-10 (smallest -0.1).
    """

    def __init__(self, count: int, total: int, smallest: float, threshold: float) -> None:
        super().__init__(count, total, smallest, threshold)
        self.count = count
        self.total = total
        self.smallest = smallest
        self.threshold = threshold
        self.remedy = (
            "Check the inputs, or lower the learning rate."
            if math.isnan(smallest)
            else "K_ii is too badly conditioned for this precision: raise the kernel jitter or nu, "
            "use float64, with SKR raise its jitter, or allow clamping with "
            "VarianceCheck(clamp=True)."
        )

    def fact(self) -> str:
        """Count the bad entries and show the smallest."""
        if math.isnan(self.smallest):
            return (
                f"{self.count} of {self.total} variances are NaN or not above {self.threshold:g}."
            )
        return (
            f"{self.count} of {self.total} variances are not above {self.threshold:g} "
            f"(smallest {self.smallest:.3g})."
        )


class NonFiniteError(NumericalError):
    """The objective or a gradient is NaN or infinite."""

    remedy = "Lower the learning rate, raise nu or SKR.jitter, or use float64."

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def fact(self) -> str:
        """Name what is not finite."""
        return f"{self.what} is not finite."


@contextmanager
def within(layer: str) -> Iterator[None]:
    """Put ``layer`` in front of the path of a numerical error that passes through."""
    try:
        yield
    except NumericalError as error:
        error.layer = f"{layer}.{error.layer}" if error.layer else layer
        raise


@contextmanager
def deferred_checks(deferred: bool = True) -> Iterator[None]:
    """Inside, no check asks a device for a number: what would be an error gives NaN instead.

    Each question makes the host wait for a GPU. Whoever finds a NaN at the end repeats the
    computation outside this context, and gets the error that says where and what.
    """
    token = _DEFERRED.set(deferred)
    try:
        yield
    finally:
        _DEFERRED.reset(token)


def checks_are_deferred() -> bool:
    """Whether this is inside ``deferred_checks``, or compiled: such code asks for no numbers."""
    return torch.compiler.is_compiling() or _DEFERRED.get()
