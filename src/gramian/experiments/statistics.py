"""Means and standard errors, and how they are printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import sem

MINUS = "−"  # as in typeset text; never in data


@dataclass(frozen=True)
class Summary:
    """Mean over n values and its standard error, std(ddof = 1)/√n; None if n < 2."""

    mean: float
    standard_error: float | None
    n: int


def summarise(values: Sequence[float]) -> Summary:
    """Mean and standard error of at least one value."""
    if not values:
        raise ValueError("no values to summarise")
    with np.errstate(invalid="ignore"):  # of infinite values
        error = None if len(values) < 2 else float(sem(values))
    return Summary(float(np.mean(values)), error, len(values))


def as_text(summary: Summary, decimals: int, error_decimals: int | None = None) -> str:
    """Mean ± standard error, such as 94.52 ± 0.07; one value is marked as the paper marks it."""
    mean = number(summary.mean, decimals)
    if summary.n == 1:
        return f"{mean} (1 run)"
    error = math.nan if summary.standard_error is None else summary.standard_error
    return f"{mean} ± {number(error, decimals if error_decimals is None else error_decimals)}"


def number(value: float, decimals: int) -> str:
    """A number for people, with a minus sign that is as wide as a plus."""
    return f"{value:.{decimals}f}".replace("-", MINUS)
