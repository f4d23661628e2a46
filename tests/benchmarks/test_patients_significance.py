"""Exact tests of the patients benchmark, against scipy."""

from __future__ import annotations

import math
import sys
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.patients import significance
from benchmarks.patients.significance import less_than, midranks, upper_bound

VALUES = st.lists(st.floats(-100, 100), min_size=2, max_size=12, unique=True)


@given(VALUES, st.integers(1, 11))
@settings(deadline=None, max_examples=100)
def test_without_ties_the_p_value_is_that_of_mann_and_whitney(values: list[float], cut: int) -> None:
    cut = min(cut, len(values) - 1)
    small, large = values[:cut], values[cut:]
    expected = stats.mannwhitneyu(small, large, alternative="less", method="exact").pvalue
    assert less_than(small, large) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.integers(0, 3), min_size=3, max_size=6), st.integers(1, 5))
@settings(deadline=None, max_examples=30)
def test_with_ties_it_is_the_share_of_all_orders(values: list[int], cut: int) -> None:
    cut = min(cut, len(values) - 1)
    ranks = stats.rankdata(values)
    orders = [sum(ranks[at] for at in order[:cut]) for order in permutations(range(len(values)))]
    share = sum(total <= ranks[:cut].sum() + 1e-9 for total in orders) / len(orders)
    assert less_than(values[:cut], values[cut:]) == pytest.approx(share)


def test_five_runs_against_five_can_be_as_sure_as_one_in_252() -> None:
    assert less_than([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(1 / 252)
    assert less_than([-math.inf] * 5, [0.9] * 5) == pytest.approx(1 / 252)
    assert less_than([1.0] * 5, [1.0] * 5) == 1.0
    assert less_than([], [1.0]) == less_than([1.0], []) == 1.0


def test_many_runs_are_approximated(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = [1, 3, 3, 4, 6, 7, 8], [2, 5, 5, 9, 10, 11, 12, 13]
    monkeypatch.setattr(significance, "MAX_EXACT", 10)
    expected = stats.mannwhitneyu(small, large, alternative="less", method="asymptotic").pvalue
    assert less_than(small, large) == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20))
@settings(deadline=None)
def test_ranks_of_equal_values_are_shared(values: list[int]) -> None:
    assert midranks(values) == stats.rankdata(values).tolist()


@given(st.integers(1, 400), st.data())
@settings(deadline=None, max_examples=60)
def test_the_bound_is_clopper_and_pearsons(trials: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, trials))
    expected = 1.0 if count == trials else stats.beta.ppf(0.95, count + 1, trials - count)
    assert upper_bound(count, trials) == pytest.approx(expected, abs=1e-9)


def test_no_alarm_in_130_runs_bounds_the_rate_at_two_point_three_percent() -> None:
    assert upper_bound(0, 130) == pytest.approx(1 - 0.05 ** (1 / 130))
    assert round(100 * upper_bound(0, 130), 1) == 2.3
    assert upper_bound(0, 0) == 1.0
    assert 0 < upper_bound(2, 5000) < 0.002
