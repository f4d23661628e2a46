"""The kernels in Triton's interpreter, on CPU tensors. Run by test_triton_backend.py in a process of its own: whether
Triton interprets is decided when it is imported."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stats_cases import assert_close, tensors

from gradmedic.stats import device, reference, triton_backend, triton_tables
from gradmedic.stats.triton_backend import TritonStats

#: Whole groups of blocks, of 4,096 elements, and more.
CHUNK = 8192
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def test_the_kernels_are_interpreted_here():
    assert triton_backend.interpreted()
    assert triton_backend.kernels() is not None


@given(st.lists(tensors().map(lambda tensor: tensor.contiguous()), min_size=1, max_size=4))
@settings(max_examples=6, deadline=None)
def test_any_mixture_equals_the_reference(cases):
    stats = TritonStats()
    assert_close(stats.measure(cases, True), reference.measure(cases, True))
    assert stats.launches <= 2 * len(DTYPES) + 1


@pytest.fixture
def short_chunks(monkeypatch):
    """Chunks that the interpreter gets through in no time."""
    monkeypatch.setattr(triton_tables, "CHUNK", CHUNK)


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_longer_than_a_chunk_are_put_together(dtype):
    generator = torch.Generator().manual_seed(3)
    long = (torch.randn(CHUNK + 4097, generator=generator, dtype=torch.float64) + 5.0).to(dtype)
    long[CHUNK - 1], long[CHUNK] = math.nan, math.inf
    cases = [long, long[1:CHUNK]]
    assert_close(TritonStats().measure(cases, True), reference.measure(cases, True))


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e25), (torch.float16, 6e4), (torch.bfloat16, 3e38)])
def test_norms_at_the_edge_of_a_type_do_not_overflow(dtype, size):
    case = torch.full((5000,), size, dtype=torch.float64).to(dtype)
    table = TritonStats().measure([case, -case], False)
    expected = float(case[0].double()) * math.sqrt(5000)
    assert table.norm.tolist() == pytest.approx([expected, expected], rel=1e-6)
    assert table.log2_hist is None


def test_eight_bit_floats_are_read():
    """All 256 of a type, and the ends by themselves: subnormal ones, infinities, NaN."""
    bytes_of = torch.arange(256, dtype=torch.uint8)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        every = bytes_of.view(dtype)
        cases = [every, every[:9], every[118:128], every[251:253]]
        assert_close(TritonStats().measure(cases, True), reference.measure(cases, True))


def test_two_runs_give_the_same_bits():
    cases = [torch.randn(20_000), torch.randn(77).half()]
    first, second = (TritonStats().measure(cases, True) for _ in range(2))
    assert torch.equal(first.moments, second.moments)
    assert torch.equal(first.counts, second.counts)


def test_launches_do_not_follow_the_number_of_tensors():
    counts = []
    for number in (2, 12):
        stats = TritonStats()
        stats.measure([torch.ones(3) for _ in range(number)], True)
        counts.append(stats.launches)
    assert counts[0] <= 3
    assert counts[1] <= 3


def test_nothing_but_empty_tensors():
    table = TritonStats().measure([torch.zeros(0), torch.zeros(2, 0)], True)
    assert_close(table, reference.measure([torch.zeros(0), torch.zeros(2, 0)], True))


@pytest.mark.parametrize("offset", [0.0, 3e4])
def test_lanes_that_gather_by_themselves_lose_nothing_to_a_mean(offset):
    """A mean that is large beside the scatter, a first block unlike the rest, and a whole chunk of one value."""
    generator = torch.Generator().manual_seed(5)
    case = torch.randn(9000, generator=generator) + offset
    case[:1024] = 0.0
    cases = [torch.randn(9000, generator=generator) + offset, case, torch.full((9000,), 0.1) + offset]
    assert_close(TritonStats().measure(cases, True), reference.measure(cases, True))


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("special", [math.nan, math.inf, 1e30, 1e-30])
def test_a_chunk_that_needs_care_is_read_again_and_its_neighbours_are_not(special):
    case = torch.randn(CHUNK + 1500, generator=torch.Generator().manual_seed(6))
    case[CHUNK + 7] = special
    if special == 1e-30:
        case[CHUNK:] = special
    assert_close(TritonStats().measure([case], True), reference.measure([case], True))


@pytest.mark.parametrize("most", [2, 16])
def test_many_chunks_of_one_tensor_are_combined_in_turns_or_at_once(monkeypatch, most):
    monkeypatch.setattr(triton_tables, "CHUNK", 64)
    monkeypatch.setattr(triton_backend, "_FEW", {"BLOCK": most, "ROWS": 2, "num_warps": 1})
    monkeypatch.setattr(triton_backend, "_MANY", {"BLOCK": 4, "ROWS": 2, "num_warps": 1})
    case = torch.randn(64 * 10 + 5, generator=torch.Generator().manual_seed(7)) + 0.1
    case[200] = math.inf
    cases = [case[1:], case[:3], case * 1e30]
    assert_close(TritonStats().measure(cases, True), reference.measure(cases, True))


def test_what_the_kernels_cannot_read_is_measured_beside_them():
    cases = [torch.randn(30, 7).T, torch.randn(9), torch.randn(4, dtype=torch.complex64), torch.randn(11).half()]
    assert_close(device.measure(cases, True), reference.measure(cases, True), extremes=1e-6)


def test_tables_are_sent_again_only_where_something_has_moved():
    stats, cases = TritonStats(), [torch.randn(50), torch.randn(60)]
    for _ in range(3):
        stats.measure(cases, False)
    assert stats.sent == 1
    moved = [torch.randn(50), torch.randn(60)]
    assert_close(stats.measure(moved, False), reference.measure(moved, False))
    assert stats.sent == 2
    assert_close(stats.measure(cases, False), reference.measure(cases, False))
    assert stats.sent == 2
