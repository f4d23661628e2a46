"""Partial results of the torch backend, and how those of neighbouring parts are joined on the device."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(slots=True)
class Parts:
    """Statistics of R sets of elements, each column float64 [R]; additive where squares would overflow otherwise.

    Attributes:
        finite, zeros, nan, inf: numbers of elements.
        max_abs: largest finite absolute value, 0 where there is none; also the unit of the next three.
        mean, mean_abs: in units of max_abs.
        scatter: sum of squared deviations from the mean, in units of max_abs^2.
        min_abs: smallest finite absolute value, infinite where there is none.
    """

    finite: Tensor
    zeros: Tensor
    nan: Tensor
    inf: Tensor
    max_abs: Tensor
    mean: Tensor
    mean_abs: Tensor
    scatter: Tensor
    min_abs: Tensor


def concatenate(parts: list[Parts]) -> Parts:
    """Return the sets of all `parts`, one after the other."""
    return Parts(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Parts)))


def join(parts: Parts, lengths: Tensor) -> Parts:
    """Join runs of `lengths` [S] neighbouring sets; a run of length 0 gives the empty set."""
    rows = parts.finite.shape[0]
    max_abs = segment(parts.max_abs, lengths, "max", 0.0)
    finite = segment(parts.finite, lengths, "sum", 0.0)

    def spread(values: Tensor) -> Tensor:
        return values.repeat_interleave(lengths, output_size=rows)

    ratio = parts.max_abs / spread(torch.where(max_abs > 0, max_abs, 1.0))
    share = parts.finite * ratio / spread(finite.clamp(min=1))
    mean = segment(parts.mean * share, lengths, "sum", 0.0)
    between = parts.finite * (parts.mean * ratio - spread(mean)).square()
    return Parts(
        finite=finite,
        zeros=segment(parts.zeros, lengths, "sum", 0.0),
        nan=segment(parts.nan, lengths, "sum", 0.0),
        inf=segment(parts.inf, lengths, "sum", 0.0),
        max_abs=max_abs,
        mean=mean,
        mean_abs=segment(parts.mean_abs * share, lengths, "sum", 0.0),
        scatter=segment(parts.scatter * ratio.square() + between, lengths, "sum", 0.0),
        min_abs=segment(parts.min_abs, lengths, "min", float("inf")),
    )


def publish(parts: Parts) -> tuple[Tensor, Tensor]:
    """Return moments float64 [6, S] and counts int64 [4, S], as `StatsTable` holds them."""
    unit = parts.max_abs
    norm = (parts.scatter + parts.finite * parts.mean.square()).sqrt() * unit
    std = (parts.scatter / parts.finite.clamp(min=1)).sqrt() * unit
    min_abs = torch.where(parts.finite > 0, parts.min_abs, 0.0)
    moments = torch.stack([norm, unit, min_abs, parts.mean * unit, std, parts.mean_abs * unit])
    numel = parts.finite + parts.nan + parts.inf
    return moments, torch.stack([numel, parts.zeros, parts.nan, parts.inf]).long()


def join_norms(norms: Tensor, lengths: Tensor) -> Tensor:
    """Join L2 norms of runs of `lengths` [S] neighbouring sets; NaN and infinity propagate, NaN first."""
    sound = norms.isfinite()
    finite = torch.where(sound, norms, 0.0)
    unit = segment(finite, lengths, "max", 0.0)
    ratio = finite / torch.where(unit > 0, unit, 1.0).repeat_interleave(lengths, output_size=norms.shape[0])
    total = segment(ratio.square(), lengths, "sum", 0.0).sqrt() * unit
    return total + segment(torch.where(sound, 0.0, norms), lengths, "sum", 0.0)


def segment(values: Tensor, lengths: Tensor, reduction: str, empty: float) -> Tensor:
    """Reduce runs of neighbouring values [R] to [S].

    Its order of additions is fixed, unlike that of `index_add`; `unsafe` leaves out a check that reads the lengths
    back to the host.
    """
    if values.shape[0] == 0:
        return values.new_full(lengths.shape, empty)
    return torch.segment_reduce(values, reduction, lengths=lengths, unsafe=True, initial=empty)
