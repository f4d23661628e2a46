"""Values that can be worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from stats_cases import KERNEL

from gradmedic.stats import gradient_stats, norms

NAN, INF = float("nan"), float("inf")
ALL = pytest.mark.parametrize("backend", ["reference", *KERNEL, "torch"])


@ALL
def test_a_small_vector(backend):
    row = gradient_stats([torch.tensor([3.0, -4.0, 0.0, -0.0])], backend=backend).rows()[0]
    found = (row.norm, row.max_abs, row.min_abs, row.mean, row.mean_abs)
    assert found == pytest.approx((5.0, 4.0, 0.0, -0.25, 1.75), rel=1e-15)
    assert row.std == pytest.approx(math.sqrt(25 / 4 - 0.25**2))
    assert (row.numel, row.zero_count, row.nan_count, row.inf_count) == (4, 2, 0, 0)


@ALL
def test_moments_are_over_the_finite_elements(backend):
    row = gradient_stats([torch.tensor([NAN, 1.0, INF, 3.0, -INF, NAN])], histogram=True, backend=backend).rows()[0]
    assert (row.mean, row.std, row.min_abs, row.max_abs, row.mean_abs) == pytest.approx((2, 1, 1, 3, 2), rel=1e-15)
    assert row.norm == pytest.approx(math.sqrt(10))
    assert (row.numel, row.nan_count, row.inf_count) == (6, 2, 2)
    assert row.log2_hist.sum() == 2


@ALL
@pytest.mark.parametrize("x", [[], [NAN], [INF, -INF], [NAN] * 2000, [0.0] * 2000, [-0.0], [5.0]])
def test_degenerate_tensors(backend, x):
    tensor = torch.tensor(x)
    row = gradient_stats([tensor], histogram=True, backend=backend).rows()[0]
    only = 5.0 if x == [5.0] else 0.0
    assert (row.norm, row.max_abs, row.min_abs, row.mean, row.std, row.mean_abs) == (only, only, only, only, 0.0, only)
    assert row.numel == len(x)
    assert row.nan_count + row.inf_count + row.zero_count == (0 if x == [5.0] else len(x))
    assert row.log2_hist.sum() == (1 if x == [5.0] else 0)


@ALL
@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (torch.full((4,), 1e25), 2e25),
        (torch.full((20,), 2e4, dtype=torch.float16), 2e4 * math.sqrt(20)),
        (torch.full((1_000_000,), 0.01, dtype=torch.bfloat16), 1e3 * 0.010009765625),
        (torch.full((4,), 1e200, dtype=torch.float64), 2e200),
        (torch.full((4,), 2.0**-140), 2.0**-139),
    ],
)
def test_norms_neither_overflow_nor_lose_digits(backend, x, expected):
    assert gradient_stats([x], backend=backend).norm.item() == pytest.approx(expected, rel=1e-6)
    assert norms([x], backend=backend).item() == pytest.approx(expected, rel=1e-6)
    total = gradient_stats([x] * 4, backend=backend).total_norm().item()
    assert total == pytest.approx(2 * expected, rel=1e-6)


@ALL
def test_twenty_half_precision_tensors(backend):
    table = gradient_stats([torch.full((50,), 2e4, dtype=torch.float16)] * 20, backend=backend)
    assert table.total_norm().item() == pytest.approx(2e4 * math.sqrt(1000), rel=1e-6)


@ALL
def test_bf16_mean_and_spread_of_a_million_elements(backend):
    torch.manual_seed(0)
    x = (torch.randn(1_000_000) + 1).bfloat16()
    row = gradient_stats([x], backend=backend).rows()[0]
    assert row.mean == pytest.approx(x.double().mean().item(), rel=1e-6)
    assert row.std == pytest.approx(x.double().std(correction=0).item(), rel=1e-6)


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_histogram_edges(backend, dtype):
    edges = [2.0**e for e in range(-60, 21)]
    below = torch.nextafter(torch.tensor(edges, dtype=dtype), torch.zeros((), dtype=dtype))
    for sign in (1, -1):
        table = gradient_stats(
            [*(sign * torch.tensor([edge], dtype=dtype) for edge in edges), *(sign * below.unsqueeze(1))],
            histogram=True,
            backend=backend,
        )
        exponents = [*range(-60, 21), *range(-61, 20)]
        assert table.log2_hist.argmax(dim=1).tolist() == [min(max(e + 48, 0), 63) for e in exponents]
        assert (table.log2_hist.sum(dim=1) == 1).all()


@ALL
def test_histogram_counts_every_bin_of_a_long_tensor(backend):
    x = torch.cat([torch.full((100 + k,), 1.5 * 2.0 ** (k - 48)) for k in range(64)] + [torch.zeros(999)])
    assert gradient_stats([x], histogram=True, backend=backend).log2_hist[0].tolist() == [100 + k for k in range(64)]


@ALL
def test_norms_propagate_what_is_not_finite(backend):
    xs = [torch.tensor([1.0, NAN]), torch.tensor([1.0, -INF]), torch.tensor([NAN, INF]), torch.zeros(0)]
    found = norms(xs, backend=backend)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.tensor([NAN, INF, NAN, 0.0]).double(), equal_nan=True)


@ALL
def test_sparse_tensors_count_as_their_dense_form(backend):
    coo = torch.sparse_coo_tensor(
        torch.tensor([[0, 0, 2]]), torch.tensor([1.0, 2.0, -4.0]), (5,), check_invariants=True
    )
    row = gradient_stats([coo], histogram=True, backend=backend).rows()[0]
    assert (row.numel, row.zero_count, row.norm, row.max_abs, row.min_abs) == pytest.approx((5, 3, 5, 4, 0), rel=1e-15)
    assert (row.mean, row.mean_abs) == pytest.approx((-0.2, 1.4))
    assert row.std == pytest.approx(torch.tensor([3.0, 0, -4, 0, 0]).std(correction=0).item())
    assert row.log2_hist.sum() == 2
