"""Reductions over the rows of a matrix: where the torch backend touches every element.

The matrix is scratch memory and is overwritten. Each row is taken in units of the size of its largest value, so that
no square overflows in the type of the elements; the results leave as float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradmedic.stats.torch_parts import Parts
from gradmedic.types import HISTOGRAM_BINS, HISTOGRAM_FIRST_EXPONENT


def row_parts(x: Tensor) -> Parts:
    """Return the statistics of the rows of `x` [R, L], float32 or float64; consumes `x`.

    Masks are kept as numbers of the type of `x`: filling and counting by boolean masks takes several times as long.
    """
    length = x.shape[1]
    magnitude, flag = x.abs(), torch.empty_like(x)
    nan = torch.ne(x, x, out=flag).sum(dim=1).double()
    inf = torch.eq(magnitude, math.inf, out=flag).sum(dim=1).double()
    zeros = torch.eq(x, 0, out=flag).sum(dim=1).double()
    sound = torch.lt(magnitude, math.inf, out=flag)
    finite = length - nan - inf
    divisor = finite.clamp(min=1)

    min_abs = magnitude.nan_to_num_(math.inf, math.inf).amin(dim=1)
    x.nan_to_num_(0.0, 0.0, 0.0)
    max_abs = torch.abs(x, out=magnitude).amax(dim=1)
    unit = _unit(max_abs)
    mean_abs = magnitude.div_(unit.unsqueeze(1)).sum(dim=1).double() / divisor
    centre = x.div_(unit.unsqueeze(1)).sum(dim=1) / divisor.to(x.dtype)
    x.sub_(centre.unsqueeze(1)).mul_(sound)
    # The centre is rounded; what remains of the sum corrects both the mean and the scatter.
    remainder = x.sum(dim=1).double()
    squares = x.mul_(x).sum(dim=1).double()
    correction = remainder / divisor
    to_max = torch.where(max_abs > 0, unit.double() / max_abs.double(), 0.0)
    return Parts(
        finite=finite,
        zeros=zeros,
        nan=nan,
        inf=inf,
        max_abs=max_abs.double(),
        mean=(centre.double() + correction) * to_max,
        mean_abs=mean_abs * to_max,
        scatter=(squares - remainder * correction).clamp(min=0) * to_max.square(),
        min_abs=min_abs.double(),
    )


def row_norms(x: Tensor) -> Tensor:
    """Return the L2 norms float64 [R] of the rows of `x` [R, L]; NaN and infinity propagate. Consumes `x`."""
    max_abs = x.abs().amax(dim=1)
    unit = _unit(torch.where(max_abs.isfinite(), max_abs, 0.0))
    x.div_(unit.unsqueeze(1))
    return x.mul_(x).sum(dim=1).double().sqrt() * unit.double()


def _unit(max_abs: Tensor) -> Tensor:
    """Return the power of two in (max_abs / 2, max_abs], by which elements are divided without rounding; 1 for 0."""
    _, exponent = torch.frexp(max_abs.double())
    power = torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent - 1)
    return torch.where(max_abs > 0, power, 1.0).to(max_abs.dtype)


def row_bins(x: Tensor, row_segments: Tensor, segments: int) -> Tensor:
    """Return the log2 histograms int64 [S, 64] of `x` [R, L], whose row r belongs to segment `row_segments[r]`.

    By their exponents, zeros are in the first bin and non-finite values in the last: the caller takes them out, for it
    has counted them.
    """
    if x.dtype == torch.float32:
        fields, bias = x.view(torch.int32).bitwise_right_shift(23).bitwise_and_(0xFF), 127
    else:
        fields, bias = x.view(torch.int64).bitwise_right_shift(52).bitwise_and_(0x7FF), 1023
    bins = fields.sub_(bias + HISTOGRAM_FIRST_EXPONENT).clamp_(0, HISTOGRAM_BINS - 1).long()
    bins.add_((row_segments * HISTOGRAM_BINS).unsqueeze(1))
    counts = torch.zeros(segments * HISTOGRAM_BINS, dtype=torch.int64, device=x.device)
    one = torch.ones((), dtype=torch.int64, device=x.device).expand(bins.numel())
    return counts.scatter_add_(0, bins.view(-1), one).view(segments, HISTOGRAM_BINS)
