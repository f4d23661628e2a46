"""How the torch backend lays tensors out: nothing is lost, doubled or mixed, wherever chunks and batches end."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stats_cases import assert_close, tensors
from torch.overrides import TorchFunctionMode

from gradmedic.stats import gradient_stats, norms, torch_chunks, torch_plans
from gradmedic.stats.torch_chunks import Layout

SIZES = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 5000)), min_size=1, max_size=12)


def laid_out(xs, padding=-1.0):
    """Return the rows of all chunks, and the owner of each row."""
    layout = Layout(xs, padding)
    buffer = layout.empty(layout.chunk_rows, layout.row)
    rows, owners = [], []
    for chunk in (chunk for batch in layout.batches for chunk in batch.chunks):
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


def assert_as_in_float64(xs):
    expected = gradient_stats(xs, histogram=True, backend="reference")
    assert_close(gradient_stats(xs, histogram=True, backend="torch"), expected)
    lengths = norms(xs, backend="reference")
    assert lengths.dtype == torch.float64
    torch.testing.assert_close(norms(xs, backend="torch"), lengths, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("few", [-1, 1 << 16])
@pytest.mark.parametrize("chunk", [1 << 13, 1 << 22])
def test_a_plan_that_is_kept_serves_other_values_strides_and_types_of_the_same_sizes(few, chunk, monkeypatch):
    monkeypatch.setattr(torch_chunks, "_FEW", few)
    monkeypatch.setattr(torch_chunks, "_CPU_BYTES", chunk)
    torch.manual_seed(0)
    shapes = [(), (0,), (1,), (40, 30), (0, 3), (2000,), (7, 5), (64,)]
    for turn in range(2):
        xs = [torch.randn(shape) * (turn + 1) for shape in shapes]
        assert_as_in_float64(xs)
        assert_as_in_float64([x * 1e25 for x in xs])
        assert_as_in_float64([x.bfloat16() for x in xs])
        assert_as_in_float64([x.half() for x in xs])
        assert_as_in_float64([x.double() * 1e200 for x in xs])
        xs[3][5, 5], xs[5][1999], xs[7][0] = float("nan"), float("inf"), -float("inf")
        assert_as_in_float64(xs)
        xs[3], xs[6] = torch.randn(40, 60)[:, ::2], torch.randn(5, 7).t()
        assert_as_in_float64(xs)
        assert_as_in_float64(xs[::-1])


def test_the_same_sizes_are_planned_once():
    torch_plans.plan_of.cache_clear()
    for value in range(5):
        norms([torch.full((3,), float(value)), torch.zeros(2, 2)], backend="torch")
        gradient_stats([torch.full((3,), float(value)), torch.zeros(4)], backend="torch")
    assert torch_plans.plan_of.cache_info().misses == 1
    norms([torch.zeros(4), torch.zeros(3)], backend="torch")
    assert torch_plans.plan_of.cache_info().misses == 2


def test_plans_are_few_and_hold_no_tensor():
    for size in range(200):
        norms([torch.zeros(size)], backend="torch")
    info = torch_plans.plan_of.cache_info()
    assert info.currsize <= info.maxsize <= 32
    plan = torch_plans.plan_of((5, 0, 3000), None, 1 << 10, 1)
    kinds = {type(value) for each in (plan, *plan.batches) for value in map(each.__getattribute__, each.__slots__)}
    assert not any(issubclass(kind, torch.Tensor) for kind in kinds)


def test_what_has_gaps_is_copied_once_though_chunks_part_it(monkeypatch):
    monkeypatch.setattr(torch_chunks, "_CPU_BYTES", 1 << 12)
    monkeypatch.setattr(torch_chunks, "_FEW", -1)
    xs = [torch.arange(900.0), *[torch.arange(800.0).view(20, 40)[:, ::2] for _ in range(6)]]
    with CopiesSeen() as seen:
        layout, rows, owners = laid_out(xs)
    assert len(layout.batches[0].chunks) > 2
    assert seen.copies == 6
    for i, x in enumerate(xs):
        flat = torch.cat([row for row, owner in zip(rows, owners, strict=True) if owner == i])
        assert torch.equal(flat[: x.numel()], x.reshape(-1))


class CopiesSeen(TorchFunctionMode):
    """Counts the tensors with gaps that are brought to one line."""

    def __init__(self):
        super().__init__()
        self.copies = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.copies += func is torch.Tensor.reshape and not args[0].is_contiguous()
        return func(*args, **(kwargs or {}))


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
