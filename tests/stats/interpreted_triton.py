"""The kernels in Triton's interpreter, on CPU tensors. Run by test_triton_backend.py in a process of its own: whether
Triton interprets is decided when it is imported."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stats_cases import assert_close, tensors

from gradmedic.clip.apply import apply_operations
from gradmedic.clip.operations import Scale
from gradmedic.stats import device, reference, triton_backend
from gradmedic.stats.triton_backend import TritonStats
from gradmedic.stats.triton_tables import CHUNK

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
    case = torch.tensor([0.5, -448.0, 0.0, 2.0**-9]).to(torch.float8_e4m3fn)
    other = torch.tensor([1.5, 57344.0, -(2.0**-14)]).to(torch.float8_e5m2)  # the interpreter reads no 8-bit infinity
    got = TritonStats().measure([case, other], True)
    assert_close(got, reference.measure([case, other], True))


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_scaling_equals_torchs_multiplication(dtype):
    generator = torch.Generator().manual_seed(1)
    cases = [torch.randn(n, generator=generator, dtype=torch.float64).to(dtype) for n in (5, 4096, 5000)]
    cases[0][2] = math.nan
    factors = torch.tensor([1.0, 0.3, 1e-3], dtype=torch.float64)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    expected = [(case.to(real) * factor.to(real)).to(dtype) for case, factor in zip(cases, factors, strict=True)]
    assert TritonStats().scale(cases, factors)
    # The interpreter cuts bf16 off where cards round: one unit in the last place. All else is equal to the bit.
    tolerance = torch.finfo(dtype).eps if dtype == torch.bfloat16 else 0.0
    for case, wanted in zip(cases, expected, strict=True):
        torch.testing.assert_close(case, wanted, rtol=tolerance, atol=0.0, equal_nan=True)


def test_factors_go_to_their_own_tensors_whatever_the_order_of_types():
    cases = [torch.ones(3, dtype=torch.float64), torch.ones(3), torch.ones(3).half(), torch.ones(4)[1:]]
    assert TritonStats().scale(cases, torch.tensor([2.0, 3.0, 4.0, 5.0], dtype=torch.float64))
    assert [float(case[0]) for case in cases] == [2.0, 3.0, 4.0, 5.0]


def test_a_clip_on_the_path_of_a_device_uses_the_kernel():
    gradients = [torch.full((3,), 2.0), torch.full((5,), 4.0)]
    before = device.kernels._stats.launches
    apply_operations(gradients, [Scale(torch.tensor(0.5, dtype=torch.float64))], on_host=False)
    apply_operations(gradients, [Scale(torch.tensor([1.0, 0.5], dtype=torch.float64))], on_host=False)
    assert device.kernels._stats.launches > before
    assert gradients[0].tolist() == [1.0] * 3
    assert gradients[1].tolist() == [1.0] * 5


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
