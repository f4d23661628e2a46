"""How the torch backend lays tensors out: nothing is lost, doubled or mixed, wherever chunks and batches end."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stats_cases import assert_close, tensors

from gradmedic.stats import gradient_stats, norms, torch_chunks
from gradmedic.stats.torch_chunks import Layout

SIZES = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 5000)), min_size=1, max_size=12)


def laid_out(xs, padding=-1.0):
    """Return the rows of all chunks, and the owner of each row."""
    layout = Layout(xs, padding)
    buffer = layout.empty(layout.chunk_rows, layout.row)
    rows, owners = [], []
    for chunk in layout.chunks():
        assert chunk.filled == sum(chunk.rows) <= layout.chunk_rows
        owners += [owner for owner, count in zip(chunk.owners, chunk.rows, strict=True) for _ in range(count)]
        rows += layout.fill(chunk, buffer).clone()
    return layout, rows, owners


@settings(deadline=None, max_examples=60)
@given(sizes=SIZES, chunk=st.sampled_from([1 << 12, 1 << 14, 1 << 22]))
def test_rows_hold_every_element_once_and_in_order(sizes, chunk):
    xs = [torch.arange(size, dtype=torch.float32) + 10_000 * i for i, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_chunks, "_CPU_BYTES", chunk)
        patch.setattr(torch_chunks, "_FEW", -1)
        layout, rows, owners = laid_out(xs)
    assert len(rows) == len(owners) == layout.rows
    assert owners == sorted(owners)
    for i, x in enumerate(xs):
        own = [row for row, owner in zip(rows, owners, strict=True) if owner == i]
        flat = torch.cat(own) if own else torch.zeros(0)
        assert torch.equal(flat[: x.shape[0]], x)
        assert (flat[x.shape[0] :] == -1).all()
        assert flat.shape[0] - x.shape[0] == layout.padding[i]


@settings(deadline=None, max_examples=60)
@given(sizes=SIZES)
def test_padding_is_a_small_share_or_a_part_of_the_shortest_rows(sizes):
    layout = Layout([torch.zeros(size) for size in sizes], 0.0)
    assert sum(layout.padding) <= sum(sizes) / 8 or layout.row == 32
    assert all(padding < layout.row for padding in layout.padding)


@settings(deadline=None, max_examples=60)
@given(
    xs=st.lists(tensors(), min_size=1, max_size=5),
    chunk=st.sampled_from([1 << 13, 1 << 14, 1 << 22]),
    batch=st.sampled_from([1, 3, 16, 1 << 16]),
    few=st.sampled_from([-1, 1 << 16]),
)
def test_results_agree_with_the_reference_wherever_chunks_and_batches_end(xs, chunk, batch, few):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_chunks, "_CPU_BYTES", chunk)
        patch.setattr(torch_chunks, "_BATCH_ROWS", batch)
        patch.setattr(torch_chunks, "_FEW", few)
        table, lengths = gradient_stats(xs, histogram=True, backend="torch"), norms(xs, backend="torch")
    assert_close(table, gradient_stats(xs, histogram=True, backend="reference"))
    torch.testing.assert_close(lengths, norms(xs, backend="reference"), rtol=1e-6, atol=0, equal_nan=True)


def test_a_group_with_few_elements_is_reduced_in_float64():
    assert Layout([torch.zeros(1 << 16)], 0.0).dtype == torch.float64
    assert Layout([torch.zeros(1 << 16), torch.zeros(1)], 0.0).dtype == torch.float32
    assert Layout([torch.zeros(1 << 17).half()], 0.0).dtype == torch.float32
    assert Layout([torch.zeros(1 << 17, dtype=torch.complex64)], 0.0).dtype == torch.float64


def test_rows_of_a_histogram_that_need_several_turns(monkeypatch):
    from gradmedic.stats import torch_rows

    monkeypatch.setattr(torch_rows, "_INDICES", 3000)
    torch.manual_seed(0)
    xs = [torch.randn(n) for n in (10_000, 50, 0, 3000)]
    expected = gradient_stats(xs, histogram=True, backend="reference")
    assert_close(gradient_stats(xs, histogram=True, backend="torch"), expected)


def test_few_large_and_many_small_tensors_share_long_rows_only_where_padding_is_cheap():
    small = [torch.zeros(3)] * 100
    assert Layout(small, 0.0).row == 32
    assert Layout([torch.zeros(1 << 20), *small], 0.0).row == 1024
    assert Layout([torch.zeros(1 << 16), *small], 0.0).row == 64
    assert Layout([torch.zeros(1000)] * 5, 0.0).row == 1024


@pytest.mark.parametrize("few", [-1, 1 << 16])
def test_subnormal_and_huge_rows_join(few, monkeypatch):
    monkeypatch.setattr(torch_chunks, "_FEW", few)
    monkeypatch.setattr(torch_chunks, "_BATCH_ROWS", 1)
    for dtype, tiny, huge in ((torch.float32, 1e-44, 3e38), (torch.float64, 1e-320, 1e307)):
        xs = [torch.cat([torch.full((1024,), v, dtype=dtype) for v in (tiny, huge, 0.0, float("nan"))])]
        xs += [torch.full((2048,), tiny, dtype=dtype), torch.zeros(2048, dtype=dtype)]
        assert_close(gradient_stats(xs, backend="torch"), gradient_stats(xs, backend="reference"))
        torch.testing.assert_close(
            norms(xs[1:], backend="torch"), norms(xs[1:], backend="reference"), rtol=1e-6, atol=0
        )
