import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gramian.experiments.statistics import Summary, as_text, number, summarise
from paper.statistics import p_as_text, welch_p

samples = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=2, max_size=6)


@given(samples)
def test_summary_is_numpys(values):
    summary = summarise(values)
    assert summary.n == len(values)
    assert summary.mean == pytest.approx(np.mean(values), abs=1e-9)
    expected = np.std(values, ddof=1) / math.sqrt(len(values))
    assert summary.standard_error == pytest.approx(expected, abs=1e-9)


def test_one_value_has_no_standard_error_and_none_no_summary():
    assert summarise([0.5]) == Summary(0.5, None, 1)
    with pytest.raises(ValueError, match="no values"):
        summarise([])


@given(samples, samples)
def test_p_is_scipys(a, b):
    p = welch_p(a, b)
    if p is None:
        assert np.ptp(a) == 0
        assert np.ptp(b) == 0
    elif min(np.ptp(a), np.ptp(b)) > 0:  # scipy warns about the others
        assert p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue, rel=1e-6)
        assert p == pytest.approx(welch_p(b, a), rel=1e-9)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1.0], [1.0, 2.0]),
        ([1.0, 2.0], []),
        ([0.1 + 0.2, 0.3], [0.7, 0.7]),  # a variance of round-off only
        ([1.0, math.inf], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, math.nan]),
    ],
)
def test_no_p_without_variances(a, b):
    assert welch_p(a, b) is None


def test_variance_on_one_side_is_enough():
    assert 0 < welch_p([1.0, 1.0], [1.1, 1.3, 1.2]) < 1


def test_texts():
    assert as_text(Summary(94.5225, 0.0693, 4), 2) == "94.52 ± 0.07"
    assert as_text(Summary(94.5225, 0.0693, 4), 2, 4) == "94.52 ± 0.0693"
    assert as_text(Summary(-0.36106, 0.0073, 4), 4) == "−0.3611 ± 0.0073"
    assert as_text(Summary(93.25, None, 1), 2) == "93.25 (1 run)"
    assert as_text(summarise([-math.inf, -1.0]), 2) == "−inf ± nan"
    assert number(-1.0, 1) == "−1.0"


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (0.763395, "0.7634"),
        (0.029531, "0.02953"),
        (0.001, "0.001000"),
        (0.00093383, "0.0009"),
        (0.00010767, "0.0001"),
        (2.3846e-05, "0.00002"),
        (3e-9, "< 0.00001"),
        (0.0, "< 0.00001"),
        (1.0, "1.000"),
        (None, "–"),
    ],
)
def test_p_values_are_printed_as_in_the_paper(p, text):
    assert p_as_text(p) == text
