"""t-tests over seeds, and how their p-values are printed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import ttest_ind_from_stats


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
