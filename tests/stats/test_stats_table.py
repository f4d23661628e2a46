"""What can be done with a table once it is there."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stats_cases import assert_close, tensors

from gradmedic.errors import InputError
from gradmedic.stats import StatsTable, gradient_stats
from gradmedic.types import COUNT_COLUMNS, MOMENT_COLUMNS


def example(histogram: bool = True) -> StatsTable:
    return gradient_stats(
        {"w": torch.tensor([3.0, -4.0, 0.0]), "b": torch.tensor([1.0, math.nan])}, histogram=histogram
    )


def test_columns_are_attributes_in_input_order():
    table = example()
    for name in MOMENT_COLUMNS:
        assert getattr(table, name).dtype == torch.float64
        assert getattr(table, name).shape == (2,)
    for name in COUNT_COLUMNS:
        assert getattr(table, name).dtype == torch.int64
        assert getattr(table, name).shape == (2,)
    assert table.log2_hist.shape == (2, 64)
    assert table.log2_hist.dtype == torch.int64
    assert table.names == ("w", "b")
    assert example(False).log2_hist is None
    assert repr(table) == "StatsTable(2 tensors, with histogram, on cpu)"


@pytest.mark.parametrize("histogram", [False, True])
def test_packing_loses_nothing(histogram):
    table = example(histogram)
    packed = table.packed()
    assert packed.dtype == torch.float64
    assert packed.shape == (74 if histogram else 10, 2)
    assert_close(StatsTable.from_packed(packed, table.names), table, 0)
    assert StatsTable.from_packed(packed, table.names).names == table.names
    with pytest.raises(InputError, match=r"\[10, N\]"):
        StatsTable.from_packed(packed[:7])


def test_numpy_and_rows():
    table = example()
    columns = table.to_numpy()
    assert set(columns) == {*MOMENT_COLUMNS, *COUNT_COLUMNS, "log2_hist"}
    assert columns["norm"].dtype == np.float64
    assert columns["zero_count"].dtype == np.int64
    rows = table.rows()
    assert [row.name for row in rows] == ["w", "b"]
    assert rows[0].norm == pytest.approx(5.0, rel=1e-15)
    assert rows[1]["nan_count"] == 1
    assert isinstance(rows[0].numel, int)
    assert "name" not in gradient_stats([torch.ones(1)]).rows()[0]


def test_survives_pickling():
    assert_close(pickle.loads(pickle.dumps(example())), example(), 0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[3.0], [4.0]], 5.0),
        ([[1e200], [1e200]], math.sqrt(2) * 1e200),
        ([[0.0], []], 0.0),
        ([], 0.0),
        ([[1.0], [math.inf]], math.inf),
        ([[math.nan], [math.inf]], math.nan),
        ([[1e-300], [1e-300]], math.sqrt(2) * 1e-300),
    ],
)
def test_total_norm(values, expected):
    table = gradient_stats([torch.tensor(v, dtype=torch.float64) for v in values])
    assert table.total_norm().dtype == torch.float64
    assert table.total_norm().shape == ()
    assert table.total_norm().item() == pytest.approx(expected, rel=1e-12, nan_ok=True)
    assert table.nonfinite().item() == sum(not math.isfinite(x) for v in values for x in v)


@settings(deadline=None, max_examples=40)
@given(x=tensors((torch.float64,)), exponent=st.integers(-12, 12), as_tensor=st.booleans())
def test_scaling_the_table_is_scaling_the_tensors(x, exponent, as_tensor):
    factor = 2.0**exponent
    x = torch.where(x.abs() < 2.0**-30, 0.0, x.clamp(-8, 8))  # clear of the bins that gather
    table = gradient_stats([x], histogram=True).scaled(torch.tensor(factor) if as_tensor else factor)
    assert_close(table, gradient_stats([x * factor], histogram=True), 1e-12)


def test_what_the_ends_of_the_histogram_gathered_stays_counted():
    table = gradient_stats([torch.tensor([2.0**30, 2.0**-60, 1.0])], histogram=True)
    for factor in (2.0**100, 2.0**-100, 3.0):
        assert table.scaled(factor).log2_hist.sum().item() == 3


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_scaling_needs_a_positive_factor(factor):
    with pytest.raises(InputError, match="positive, finite factor"):
        example().scaled(factor)
