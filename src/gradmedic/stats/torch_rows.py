"""Reductions over the rows of a matrix: where the torch backend touches every element.

The matrix is scratch memory and is overwritten. Each row is taken in units of the size of its largest value, so that
no square overflows in the type of the elements. Passes write where they are told to, for fresh memory costs as much
as another pass; what they leave for each row is completed later, for many chunks at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gradmedic.stats.torch_parts import Parts
from gradmedic.types import HISTOGRAM_BINS, HISTOGRAM_FIRST_EXPONENT

#: Indices into histograms that are held at once.
_INDICES = 1 << 21
#: Numbers that `reduce_rows` and `reduce_norms` leave for each row.
ROW_COLUMNS, NORM_COLUMNS = 9, 2
_MAX_ABS = 4


class _Format(NamedTuple):
    """How a floating type lies in memory: the integer of its size, and its fields."""

    bits: torch.dtype
    mantissa: int
    mask: int
    bias: int


_FORMATS = {
    torch.float32: _Format(torch.int32, 23, 0xFF, 127),
    torch.float64: _Format(torch.int64, 52, 0x7FF, 1023),
}


def reduce_rows(x: Tensor, scratch: Tensor, out: Tensor) -> None:
    """Reduce the rows of `x` [R, L], float32 or float64, to `out` [ROW_COLUMNS, R]; consumes `x` and `scratch` [R, L].

    Masks are kept as numbers of the type of `x`: filling and counting by boolean masks takes several times as long.
    """
    zeros, nan, finite, min_abs, max_abs, total, centre, remainder, squares = out.unbind(0)
    torch.eq(x, 0, out=scratch)
    torch.sum(scratch, 1, out=zeros)
    torch.ne(x, x, out=scratch)
    torch.sum(scratch, 1, out=nan)
    # As integers, magnitudes are in the same order, and beyond the finite ones come infinity and NaN.
    bits = _FORMATS[x.dtype].bits
    torch.amin(torch.abs(x, out=scratch).view(bits), 1, out=min_abs.view(bits))
    torch.sum(scratch.lt_(math.inf), 1, out=finite)

    torch.nan_to_num(x, 0.0, 0.0, 0.0, out=scratch)
    scale = _unit(_extremes(scratch, max_abs)).reciprocal_().unsqueeze(1)
    torch.div(torch.sum(scratch.mul_(scale), 1), finite, out=centre)
    torch.sum(scratch.abs_(), 1, out=total)
    # What is not finite stays so until the centre is off; where nothing is finite, the centre itself is NaN.
    x.mul_(scale).sub_(centre.unsqueeze(1)).nan_to_num_(0.0, 0.0, 0.0)
    torch.sum(x, 1, out=remainder)
    torch.sum(x.mul_(x), 1, out=squares)


def row_parts(rows: Tensor, length: int) -> Parts:
    """Return, in float64, the statistics behind what `reduce_rows` left for rows of `length` elements."""
    unit = _unit(rows.select(0, _MAX_ABS)).double()
    zeros, nan, finite, min_abs, max_abs, total, centre, remainder, squares = rows.double().unbind(0)
    divisor = finite.clamp(min=1)
    # The centre is rounded; what remains of the sum corrects both the mean and the scatter.
    correction = remainder / divisor
    return Parts(
        finite=finite,
        zeros=zeros,
        nan=nan,
        inf=length - finite - nan,
        max_abs=max_abs,
        unit=unit,
        mean=centre.nan_to_num_(0.0) + correction,
        mean_abs=total / divisor,
        scatter=(squares - remainder * correction).clamp_(min=0),
        min_abs=min_abs.nan_to_num_(math.inf, math.inf),
    )


def reduce_norms(x: Tensor, out: Tensor) -> None:
    """Reduce the rows of `x` [R, L] to `out` [NORM_COLUMNS, R]; NaN and infinity propagate. Consumes `x`."""
    max_abs, squares = out.unbind(0)
    x.mul_(_unit(_extremes(x, max_abs)).reciprocal_().unsqueeze(1))
    torch.sum(x.mul_(x), 1, out=squares)


def row_norms(rows: Tensor) -> Tensor:
    """Return the L2 norms float64 [R] behind what `reduce_norms` left."""
    max_abs, squares = rows.unbind(0)
    return squares.double().sqrt_().mul_(_unit(max_abs))


def count_bins(x: Tensor, scratch: Tensor, owners: Tensor, counts: Tensor) -> None:
    """Count the powers of two of `x` [R, L] in `counts` int64 [S * 64]; row r belongs to histogram `owners[r]`.

    By their exponents, zeros are in the first bin and non-finite values in the last: the caller takes them out, for it
    has counted them. Consumes `scratch`.
    """
    format = _FORMATS[x.dtype]
    first = format.bias + HISTOGRAM_FIRST_EXPONENT
    fields = torch.bitwise_right_shift(x.view(format.bits), format.mantissa, out=scratch.view(format.bits))
    fields.bitwise_and_(format.mask).clamp_(first, first + HISTOGRAM_BINS - 1)
    starts = (owners * HISTOGRAM_BINS - first).unsqueeze(1)
    some = max(1, _INDICES // x.shape[1])
    one = torch.ones((), dtype=torch.int64, device=x.device)
    for part, start in zip(torch.split(fields, some), torch.split(starts, some), strict=True):
        counts.scatter_add_(0, (part + start).view(-1), one.expand(part.numel()))


def _extremes(x: Tensor, out: Tensor) -> Tensor:
    """Return the largest absolute value of each row of `x`, in `out`; NaN propagates."""
    return torch.maximum(torch.amax(x, 1), torch.amin(x, 1).neg_(), out=out)


def _unit(max_abs: Tensor) -> Tensor:
    """Return the power of two in (max_abs / 2, max_abs], by which elements are divided without rounding.

    The bits of the exponent alone are that power. It and its reciprocal are kept normal, and finite where the value is
    infinite or NaN.
    """
    format = _FORMATS[max_abs.dtype]
    power = max_abs.view(format.bits).bitwise_and(format.mask << format.mantissa).view(max_abs.dtype)
    least = torch.finfo(max_abs.dtype).tiny
    return power.clamp_(least, 1 / least)
