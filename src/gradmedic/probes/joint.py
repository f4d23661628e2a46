"""Totals of a step over tensors of which only some are here: what the frame says of the whole model."""

from __future__ import annotations

import torch

from gradmedic.probes.positions import index_of
from gradmedic.probes.reading import Reading, current_norms
from gradmedic.stats.joining import run
from gradmedic.stats.spans import Spans
from gradmedic.stats.transfer import moved

#: Sums over all tensors and ranks: squares of the norms before and after clipping and after our own, NaN and infinite
#: elements, tensors that have a gradient.
SUMS = ("before", "after", "own", "nan", "inf", "seen")


def join_totals(readings: list[tuple[Reading, list[int]]], size: int, spans: Spans) -> torch.Tensor:
    """Return the totals of a step's gradients, float64 [6], see `SUMS`; the same on all ranks. One collective a group.

    Args:
        readings: what was measured here, with the positions of its tensors; none where nothing has a gradient here.
        size: number of the optimizer's tensors, N.
        spans: which of them go together with those of other ranks.
    """
    home = readings[0][0].norm.device if readings else torch.device("cpu")
    rows = torch.zeros(len(SUMS), size, dtype=torch.float64, device=home)
    for reading, positions in readings:
        rows[:, index_of(positions, home)] = moved(_rows(reading), home)
    return run(spans.joining_totals(rows))


def _rows(reading: Reading) -> torch.Tensor:
    before, after, table = reading.norm, current_norms(reading), reading.table
    own = torch.ones_like(before)
    for clip in reading.clips:
        if clip.scale is not None:
            own = _scaled(own, clip.scale, clip.positions)
    nans = before.isnan().double() if table is None else table.nan_count.double()
    infs = before.isinf().double() if table is None else table.inf_count.double()
    there = torch.ones_like(before) if reading.present is None else moved(reading.present, before.device).double()
    squares = [torch.where(torch.isfinite(each), each, 0.0).square() for each in (before, after, before * own)]
    return torch.stack([*squares, nans, infs, there])


def _scaled(values: torch.Tensor, factor: torch.Tensor, positions: list[int] | None) -> torch.Tensor:
    factor = moved(factor, values.device)
    if positions is None:
        return values * factor
    return values.index_copy(0, index_of(positions, values.device), values[index_of(positions, values.device)] * factor)
