"""Every backend against the float64 reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stats_cases import KERNEL, REAL_DTYPES, assert_close, tensors

from gradmedic.stats import gradient_stats, norms

BACKENDS = ("auto", *KERNEL, "torch")


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, max_examples=60)
@given(xs=st.lists(tensors(), max_size=5), histogram=st.booleans())
def test_backend_agrees_with_the_reference(backend, xs, histogram):
    expected = gradient_stats(xs, histogram=histogram, backend="reference")
    assert_close(gradient_stats(xs, histogram=histogram, backend=backend), expected)
    torch.testing.assert_close(
        norms(xs, backend=backend), norms(xs, backend="reference"), rtol=1e-6, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("backend", ["auto", "torch"])
@settings(deadline=None, max_examples=25)
@given(x=tensors((torch.float32, torch.float64)), y=tensors((torch.float32, torch.float64)))
def test_complex_tensors_are_measured_by_their_absolute_values(backend, x, y):
    size = min(x.numel(), y.numel())
    z = torch.complex(x.reshape(-1)[:size].double(), y.reshape(-1)[:size].double())
    xs = [z, z.to(torch.complex64), z.conj(), z[::2]]
    # A magnitude is rounded, up or down: without the histogram, whose edges would tell.
    assert_close(gradient_stats(xs, backend=backend), gradient_stats(xs, backend="reference"), 1e-5, extremes=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_that_need_several_chunks(backend):
    torch.manual_seed(0)
    sizes = [300_000, 10, 700_001, 0, 1024, 1023, 2_000_000]
    xs = [(torch.randn(n) * 10.0**-i).to(REAL_DTYPES[i % 4]) for i, n in enumerate(sizes)]
    xs[2][5] = float("nan")
    xs[6][-1] = float("inf")
    xs.append(torch.randn(900, 1000)[:, ::2].t())
    assert_close(
        gradient_stats(xs, histogram=True, backend=backend), gradient_stats(xs, histogram=True, backend="reference")
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_float_range_is_kept_where_squares_would_not_fit(backend, dtype):
    top = 1e300 if dtype == torch.float64 else 1e37
    for size in (1, 5, 3000, 300_000):
        x = torch.full((size,), top, dtype=dtype)
        x[::2] = -top
        assert_close(
            gradient_stats([x, x / top / top], backend=backend), gradient_stats([x, x / top / top], backend="reference")
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_spread_around_a_large_mean_survives(backend):
    torch.manual_seed(1)
    x = (torch.randn(200_000) * 0.25 + 4096).float()
    table = gradient_stats([x, torch.full((5000,), 0.1)], backend=backend)
    expected = x.double().std(correction=0).item()
    assert table.std[0].item() == pytest.approx(expected, rel=1e-6)
    assert table.std[1].item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_outlier_at_the_front_does_not_spoil_the_spread(backend):
    torch.manual_seed(2)
    x = torch.randn(1024) * 1e-3
    x[0] = 1e3
    assert_close(gradient_stats([x], backend=backend), gradient_stats([x], backend="reference"), 4e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [0.0371, 0.123456, 0.7, 1.1])
@pytest.mark.parametrize("outlier_at", [7, 700])
def test_equal_elements_beside_an_outlier_are_not_rounded_one_way(backend, value, outlier_at):
    x = torch.full((1024,), value)
    x[::2] = -value
    x[outlier_at] = 50
    assert_close(gradient_stats([x], backend=backend), gradient_stats([x], backend="reference"))


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_all_values_of_eight_bit_floats(backend, name):
    x = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name))
    assert_close(
        gradient_stats([x, x[::3]], histogram=True, backend=backend),
        gradient_stats([x, x[::3]], histogram=True, backend="reference"),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_values_of_sixteen_bit_floats(dtype):
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    expected = gradient_stats([x], histogram=True, backend="reference")
    for backend in BACKENDS:
        assert_close(gradient_stats([x], histogram=True, backend=backend), expected)
    assert gradient_stats([x]).nan_count.item() == x.isnan().sum().item()
