import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.report.views import quantiles_of

SHARES = [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0]


def histogram(values):
    """The histogram as docs/record.md defines it."""
    bins = np.clip(np.floor(np.log2(values)).astype(int) + 48, 0, 63)
    return np.bincount(bins, minlength=64)


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 2000), st.floats(-30, 10), st.floats(0.1, 8), st.integers(0, 10**6))
def test_each_quantile_is_within_a_factor_of_two(count, centre, spread, seed):
    values = np.exp2(np.clip(np.random.default_rng(seed).normal(centre, spread, count), -47, 15))
    found = quantiles_of(histogram(values), SHARES, values.min(), values.max())
    # Between two elements in far bins any value is a median: the true quantile is bracketed by its neighbours.
    low = np.quantile(values, SHARES, method="lower")
    high = np.quantile(values, SHARES, method="higher")
    assert (found >= low / 2.0001).all()
    assert (found <= high * 2.0001).all()
    assert (np.diff(found) >= -1e-12 * found[1:]).all()
    assert found[0] == pytest.approx(values.min())
    assert found[-1] == pytest.approx(values.max())


def test_what_lies_beyond_the_end_bins_is_bounded_by_the_extremes():
    values = np.array([1e-30, 1e-30, 1e9, 1e9])
    found = quantiles_of(histogram(values), [0.0, 0.25, 0.75, 1.0], 1e-30, 1e9)
    assert found[0] == pytest.approx(1e-30)
    assert found[-1] == pytest.approx(1e9)
    assert 1e-30 <= found[1] < 2**-47
    assert 2**15 <= found[2] <= 1e9


def test_empty_histograms_and_lost_extremes():
    counts = np.zeros((2, 3, 64))
    counts[0, 1, 48] = 5
    found = quantiles_of(counts, SHARES, np.zeros((2, 3)), np.full((2, 3), np.nan))
    assert found.shape == (2, 3, 7)
    assert np.isnan(found[0, 0]).all()
    assert np.isnan(found[1]).all()
    assert ((found[0, 1] >= 1) & (found[0, 1] <= 2)).all()


def test_one_element_in_each_bin_gives_its_own_bin():
    counts = np.ones(64)
    found = quantiles_of(counts, [at / 63 for at in range(64)])
    assert (np.floor(np.log2(found)) == np.arange(64) - 48).all()
