"""Statistics of tensors whose elements lie on several ranks: those of the whole, the same on every rank.

Each rank measures what it holds. What can be added up goes into one sum, extremes go into one maximum: two collectives
for any number of tensors, shared with whatever else is joined at the same time (see `gradmedic.stats.joining`). A
replicated part counts on one rank only, an empty shard is the neutral element.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmedic.stats.joining import Joining, Request
from gradmedic.stats.table import StatsTable

#: Squares of norms up to here fit into float64; only float64 tensors have larger ones.
_SAFE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.complex64)


def reduce_table(table: StatsTable, counts_here: Tensor, mesh: Any) -> Joining[StatsTable]:
    """Join the tables of all ranks row by row: row i describes the elements behind row i on every rank.

    Args:
        table: what this rank holds of N tensors; a row without elements for a tensor of which it holds nothing.
        counts_here: bool [N], on the table's device: False where another rank holds the same elements.
        mesh: the ranks; all must join at the same time, with the same N, with or without a histogram.

    Returns:
        A table of the whole tensors, the same bits on every rank. Two collectives; no host synchronisation of its own.

    References:
        Chan, Golub, LeVeque (1979), Updating formulae and a pairwise algorithm for computing sample variances; here
        about a common centre, which the maximum brings, so that nothing is lost to cancellation.
    """
    here = counts_here.to(table.moments.dtype)
    number = (table.numel - table.nan_count - table.inf_count).to(here.dtype) * here
    some = number > 0
    lowest = torch.full_like(here, -torch.inf)
    extremes = torch.stack([table.max_abs, -table.min_abs, table.mean, -table.mean])
    extremes = yield Request(mesh, torch.where(some, extremes, lowest), largest=True)
    extremes = torch.where(torch.isinf(extremes), 0.0, extremes)
    largest, smallest = extremes[0], -extremes[1]
    centre = (extremes[2] - extremes[3]) / 2
    # In units of the largest value: the squares of 1e200 do not fit into float64.
    unit = torch.where(largest > 0, largest, 1.0)

    offset = (table.mean - centre) / unit
    sums = [
        (table.norm / unit).square() * here,
        number,
        number * offset,
        number * ((table.std / unit).square() + offset.square()),
        number * (table.mean_abs / unit),
        *(table.counts.to(here.dtype) * here),
    ]
    if table.log2_hist is not None:
        sums += [*(table.log2_hist.to(here.dtype).T * here)]
    total = yield Request(mesh, torch.stack(sums))

    n = total[1].clamp(min=1)
    first = total[2] / n
    spread = (total[3] / n - first.square()).clamp(min=0).sqrt() * unit
    mean = torch.where(total[1] > 0, centre + first * unit, 0.0)
    moments = torch.stack([total[0].sqrt() * unit, largest, smallest, mean, spread, total[4] / n * unit])
    histogram = None if table.log2_hist is None else total[9:].T.round().long().contiguous()
    return StatsTable(moments, total[5:9].round().long(), histogram, table.names)


def reduce_norms(
    norms: Tensor, present: Tensor, counts_here: Tensor, mesh: Any, *, wide: bool
) -> Joining[tuple[Tensor, Tensor]]:
    """Join the L2 norms of the parts on all ranks to those of the whole; NaN and infinities spread.

    Args:
        norms: float64 [N], 0 for a tensor of which nothing lies here.
        present: bool [N], which tensors have a value here at all.
        counts_here: bool [N], as for `reduce_table`.
        mesh: the ranks.
        wide: whether norms may exceed 1e150 (float64 gradients): takes a second collective. The same on all ranks.

    Returns:
        (norms [N] float64, present on any rank [N] bool), the same bits on every rank.
    """
    mine = torch.where(counts_here, norms, torch.zeros_like(norms))
    unit = torch.ones_like(mine)
    if wide:  # a maximum need not spread NaN; the sum does
        largest = yield Request(mesh, torch.where(torch.isfinite(mine), mine, torch.zeros_like(mine)), largest=True)
        unit = torch.where(largest > 0, largest, unit)
    squares, there = yield Request(mesh, torch.stack([(mine / unit).square(), present.to(mine.dtype)]))
    return squares.sqrt() * unit, there > 0


def may_be_wide(dtypes: list[torch.dtype]) -> bool:
    """Whether norms of tensors of these types may be too large for their squares to fit into float64."""
    return any(dtype not in _SAFE_DTYPES for dtype in dtypes)
