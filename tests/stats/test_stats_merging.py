"""Joining the statistics of parts gives the statistics of the whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stats_cases import assert_close, tensors

from gradmedic.errors import InputError
from gradmedic.stats import gradient_stats, merge


@settings(deadline=None, max_examples=80)
@given(x=tensors(), share=st.floats(0, 1))
def test_halves_give_the_whole(x, share):
    flat = x.reshape(-1)
    cut = round(share * flat.shape[0])
    whole = gradient_stats([flat], histogram=True, backend="reference")
    halves = [gradient_stats([half], histogram=True, backend="reference") for half in (flat[:cut], flat[cut:])]
    assert_close(merge(*halves), whole)
    assert_close(merge(*reversed(halves)), whole)


def test_the_empty_tensor_is_neutral():
    table = gradient_stats([torch.tensor([1.0, 2.0]), torch.tensor([float("nan")])], histogram=True)
    nothing = gradient_stats([torch.zeros(0), torch.zeros(0)], histogram=True)
    assert_close(merge(table, nothing), table, 1e-15)
    assert_close(merge(nothing, table), table, 1e-15)


def test_merging_in_any_grouping_gives_the_same():
    torch.manual_seed(0)
    a, b, c = (gradient_stats([torch.randn(n) + n]) for n in (5, 50, 500))
    assert_close(merge(merge(a, b), c), merge(a, merge(b, c)), 1e-12)


def test_names_come_from_the_first():
    table = gradient_stats({"w": torch.ones(2)})
    assert merge(table, gradient_stats([torch.ones(3)])).names == ("w",)


def test_tables_must_fit():
    one, two = gradient_stats([torch.ones(1)]), gradient_stats([torch.ones(1)] * 2)
    with pytest.raises(InputError, match="1 and 2 rows"):
        merge(one, two)
    with pytest.raises(InputError, match="histogram"):
        merge(one, gradient_stats([torch.ones(1)], histogram=True))
