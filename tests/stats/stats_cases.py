"""What the tests of the statistics share: tensors of every kind, and how close two tables have to be."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from gradmedic.stats import StatsTable, native_available

REAL_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
#: What can be asked of an installation; `test_stats_without_kernel.py` is about one that has no kernel.
KERNEL = ("native",) if native_available() else ()
SPECIALS = (float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-45, 1e-40, 1e25, -1e38, 65504.0, 6e-8, 2.0**-48)


@st.composite
def tensors(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = REAL_DTYPES) -> Tensor:
    """Draw a tensor: any type, size and scale, with special values, an offset and awkward strides."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(st.sampled_from([(), (0,), (1,), (3, 0, 2), (7,), (100,), (31, 33), (1, 1025), (5, 4, 3, 2), (4099,)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    x = x * 2.0 ** draw(st.integers(-140, 120)) if draw(st.booleans()) else x * 10.0 ** draw(st.integers(-6, 3))
    x = x + draw(st.sampled_from([0.0, 0.0, 1.0, -1e3, 1e-9]))
    if x.numel() and draw(st.booleans()):
        count = draw(st.integers(1, min(6, x.numel())))
        at = torch.randint(0, x.numel(), (count,), generator=generator)
        x.view(-1)[at] = torch.tensor(
            draw(st.lists(st.sampled_from(SPECIALS), min_size=count, max_size=count))
        ).double()
    return stride(x.to(dtype), draw(st.sampled_from(["plain", "transposed", "gaps", "offset", "expanded"])))


def stride(x: Tensor, how: str) -> Tensor:
    """Return the tensor with other strides (and, for some, other elements)."""
    if how == "transposed" and x.dim() > 1:
        return x.transpose(0, -1)
    if how == "gaps" and x.dim() > 0:
        return x[..., ::2]
    if how == "offset" and x.dim() > 0:
        return x[1:]
    if how == "expanded":
        return x.unsqueeze(0).expand(3, *x.shape)
    return x


def assert_close(got: StatsTable, expected: StatsTable, tolerance: float = 1e-6, extremes: float = 0.0) -> None:
    """Counts and histogram exact; the rest relative, the mean relative to the mean absolute value.

    Extremes are exact too, but where a magnitude is computed (complex numbers) and may be rounded either way.
    """
    assert len(got) == len(expected)
    torch.testing.assert_close(got.counts, expected.counts, rtol=0, atol=0)
    torch.testing.assert_close(got.max_abs, expected.max_abs, rtol=extremes, atol=0)
    torch.testing.assert_close(got.min_abs, expected.min_abs, rtol=extremes, atol=0)
    if expected.log2_hist is not None:
        torch.testing.assert_close(got.log2_hist, expected.log2_hist, rtol=0, atol=0)
    torch.testing.assert_close(got.norm, expected.norm, rtol=tolerance, atol=0)
    torch.testing.assert_close(got.mean_abs, expected.mean_abs, rtol=tolerance, atol=0)
    assert ((got.mean - expected.mean).abs() <= tolerance * expected.mean_abs).all(), (got.mean, expected.mean)
    allowed = tolerance * expected.std + tolerance / 8 * expected.max_abs
    assert ((got.std - expected.std).abs() <= allowed).all(), (got.std, expected.std)
