"""Means, standard errors and t-tests over seeds, and how they are printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import sem, ttest_ind_from_stats

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


def welch_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """p-value of the two-tailed t-test with unequal variances (Welch), the paper's test.

    None where there is no such test: fewer than two values on a side; a value that is not finite;
    no variance on either side beyond round-off, so that t = difference/0.
    """
    if min(len(a), len(b)) < 2 or not all(map(math.isfinite, (*a, *b))):
        return None
    first, second = ((np.mean(x), np.std(x, ddof=1), len(x)) for x in (a, b))
    if max(first[1], second[1]) <= 1e-12 * np.abs([*a, *b]).max():
        return None
    # ttest_ind itself warns if one side has no variance.
    return float(ttest_ind_from_stats(*first, *second, equal_var=False).pvalue)


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


def p_as_text(p: float | None) -> str:
    """A p-value as the paper's text prints them, without powers of ten.

    Four significant digits down to 0.001 (0.7634, 0.02953), one below (0.0009, 0.00002).
    """
    if p is None:
        return "–"
    if p < 1e-5:
        return "< 0.00001"
    digits = 4 if p >= 0.001 else 1
    decimals = digits - 1 - math.floor(math.log10(p))
    return f"{p:.{decimals}f}"
