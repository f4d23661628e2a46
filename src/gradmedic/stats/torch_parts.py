"""Partial results of the torch backend, and how those of neighbouring parts are joined on the device."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

#: Unit of an empty set; not 0, by which it would be divided.
_SMALLEST = torch.finfo(torch.float64).tiny


@dataclass(slots=True)
class Parts:
    """Statistics of R sets of elements, each column float64 [R]; additive where squares would overflow otherwise.

    Attributes:
        finite, zeros, nan, inf: numbers of elements.
        max_abs: largest finite absolute value, 0 where there is none.
        unit: a power of two of its size, in which the next three are measured.
        mean, mean_abs: in units of `unit`.
        scatter: sum of squared deviations from the mean, in units of `unit`^2.
        min_abs: smallest finite absolute value, infinite where there is none.
    """

    finite: Tensor
    zeros: Tensor
    nan: Tensor
    inf: Tensor
    max_abs: Tensor
    unit: Tensor
    mean: Tensor
    mean_abs: Tensor
    scatter: Tensor
    min_abs: Tensor


def concatenate(parts: list[Parts]) -> Parts:
    """Return the sets of all `parts`, one after the other."""
    return Parts(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Parts)))


def join(parts: Parts, lengths: Tensor) -> Parts:
    """Join runs of `lengths` [S] neighbouring sets; a run of length 0 gives the empty set."""
    run = _runs(lengths, parts.finite.shape[0])
    max_abs, unit = segments([parts.max_abs, parts.unit], lengths, "max", 0.0).unbind(0)
    unit.clamp_(min=_SMALLEST)
    counts = segments([parts.finite, parts.zeros, parts.nan, parts.inf], lengths, "sum", 0.0)
    ratio = parts.unit / unit.index_select(0, run)
    share = parts.finite * ratio / counts.select(0, 0).clamp(min=1).index_select(0, run)
    means = segments([parts.mean * share, parts.mean_abs * share], lengths, "sum", 0.0)
    between = parts.finite * (parts.mean * ratio - means.select(0, 0).index_select(0, run)).square()
    scatter = segments([parts.scatter * ratio.square() + between], lengths, "sum", 0.0)
    min_abs = segments([parts.min_abs], lengths, "min", math.inf)
    finite, zeros, nan, inf = counts.unbind(0)
    mean, mean_abs = means.unbind(0)
    return Parts(finite, zeros, nan, inf, max_abs, unit, mean, mean_abs, scatter.squeeze(0), min_abs.squeeze(0))


def publish(parts: Parts) -> tuple[Tensor, Tensor]:
    """Return moments float64 [6, S] and counts int64 [4, S], as `StatsTable` holds them."""
    unit = parts.unit
    some = parts.finite > 0
    norm = (parts.scatter + parts.finite * parts.mean.square()).sqrt() * unit
    std = (parts.scatter / parts.finite.clamp(min=1)).sqrt() * unit
    max_abs, min_abs = (torch.where(some, column, 0.0) for column in (parts.max_abs, parts.min_abs))
    moments = torch.stack([norm, max_abs, min_abs, parts.mean * unit, std, parts.mean_abs * unit])
    numel = parts.finite + parts.nan + parts.inf
    return moments, torch.stack([numel, parts.zeros, parts.nan, parts.inf]).long()


def join_norms(norms: Tensor, lengths: Tensor) -> Tensor:
    """Join L2 norms of runs of `lengths` [S] neighbouring sets; NaN and infinity propagate, NaN first."""
    sound = norms.isfinite()
    finite = torch.where(sound, norms, 0.0)
    unit = segments([finite], lengths, "max", 0.0).squeeze(0).clamp_(min=_SMALLEST)
    ratio = finite / unit.index_select(0, _runs(lengths, norms.shape[0]))
    squares, unsound = segments([ratio.square(), torch.where(sound, 0.0, norms)], lengths, "sum", 0.0).unbind(0)
    return squares.sqrt() * unit + unsound


def segments(columns: list[Tensor], lengths: Tensor, reduction: str, empty: float) -> Tensor:
    """Reduce runs of `lengths` [S] neighbouring values of each of K columns [R] to [K, S], in one launch.

    Unlike `index_add` and `scatter_reduce`, its order of additions is fixed on every device; unlike differences of
    cumulative sums, it does not cancel. `unsafe` leaves out a check that reads the lengths back to the host.
    """
    shape = (len(columns), lengths.shape[0])
    if columns[0].shape[0] == 0:
        return columns[0].new_full(shape, empty)
    values = torch.cat(columns) if len(columns) > 1 else columns[0]
    tiled = lengths.repeat(len(columns)) if len(columns) > 1 else lengths
    return torch.segment_reduce(values, reduction, lengths=tiled, unsafe=True, initial=empty).view(shape)


def _runs(lengths: Tensor, rows: int) -> Tensor:
    """Return, for each of `rows` neighbouring sets, the run that it belongs to."""
    return torch.repeat_interleave(lengths, output_size=rows)
