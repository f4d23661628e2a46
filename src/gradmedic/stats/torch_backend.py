"""The torch backend: any device, no host synchronisation, a number of launches that follows the volume of data only.

torch has no foreach operation for sums, minima or counts. Tensors of one device and type are therefore concatenated
into matrices of bounded size and reduced by rows; what is kept of many rows is then joined by tensors, at once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradmedic.stats.table import StatsTable
from gradmedic.stats.torch_batches import batches
from gradmedic.stats.torch_chunks import Layout
from gradmedic.stats.torch_parts import Parts, concatenate, join, join_norms, publish
from gradmedic.stats.torch_plans import Chunk, Counts
from gradmedic.stats.torch_rows import (
    NORM_COLUMNS,
    ROW_COLUMNS,
    count_bins,
    reduce_norms,
    reduce_rows,
    row_norms,
    row_parts,
)
from gradmedic.stats.transfer import to_device
from gradmedic.types import HISTOGRAM_BINS


def measure(tensors: list[Tensor], histogram: bool) -> StatsTable:
    """Return the table [N] of plain strided tensors, on their `home`."""
    groups = _groups(tensors)
    if len(groups) == 1:
        return _measure_group(tensors, histogram)
    device = home(tensors)
    moments = [torch.zeros(6, 0, dtype=torch.float64, device=device)]
    counts = [torch.zeros(4, 0, dtype=torch.int64, device=device)]
    bins = [torch.zeros(0, HISTOGRAM_BINS, dtype=torch.int64, device=device)]
    for members in groups:
        table = _measure_group([tensors[i] for i in members], histogram)
        moments.append(table.moments.to(device, non_blocking=True))
        counts.append(table.counts.to(device, non_blocking=True))
        if table.log2_hist is not None:
            bins.append(table.log2_hist.to(device, non_blocking=True))
    back = _inverse(groups, device)
    return StatsTable(
        torch.cat(moments, dim=1).index_select(1, back),
        torch.cat(counts, dim=1).index_select(1, back),
        torch.cat(bins).index_select(0, back) if histogram else None,
    )


def norms(tensors: list[Tensor]) -> Tensor:
    """Return the L2 norms float64 [N] of plain strided tensors, on their `home`; NaN and infinity propagate."""
    groups = _groups(tensors)
    if len(groups) == 1:
        return _norms_of_group(tensors)
    device = home(tensors)
    found = [torch.zeros(0, dtype=torch.float64, device=device)]
    found += [_norms_of_group([tensors[i] for i in members]).to(device, non_blocking=True) for members in groups]
    return torch.cat(found).index_select(0, _inverse(groups, device))


def home(tensors: list[Tensor]) -> torch.device:
    """Return where the results live: the first device that is not the CPU, for nothing may wait for that one."""
    return next((t.device for t in tensors if t.device.type != "cpu"), torch.device("cpu"))


def send(values: list[int] | Counts, device: torch.device) -> Tensor:
    """Return int64 values on the device without waiting for it; `torch.tensor(..., device=...)` would wait."""
    return to_device(torch.tensor(values, dtype=torch.int64, device="cpu"), device)


def _measure_group(tensors: list[Tensor], histogram: bool) -> StatsTable:
    """Return the table of tensors of one device and type, on that device."""
    layout = Layout(tensors, padding=math.nan)
    scratch = layout.empty(layout.chunk_rows, layout.row)
    bins = torch.zeros(len(tensors) * HISTOGRAM_BINS if histogram else 0, dtype=torch.int64, device=layout.device)

    def reduce(x: Tensor, chunk: Chunk, out: Tensor) -> None:
        free = scratch.narrow(0, 0, chunk.filled)
        if histogram:
            count_bins(x, free, _owners(chunk, layout.device), bins)
        reduce_rows(x, free, out)

    found: list[Parts] = []
    for results, batch in batches(layout, ROW_COLUMNS, reduce):
        found.append(join(row_parts(results, layout.row), send(batch.rows, layout.device)))
    parts = found[0] if len(found) == 1 else concatenate(found)
    if _apart(layout.runs):
        parts = join(parts, send(layout.runs, layout.device))
    padding = send(layout.padding, layout.device)
    parts.nan.sub_(padding)
    moments, counts = publish(parts)
    if not histogram:
        return StatsTable(moments, counts)
    by_tensor = bins.view(len(tensors), HISTOGRAM_BINS)
    _, zeros, nan, inf = counts.unbind(0)
    by_tensor.select(1, 0).sub_(zeros)
    by_tensor.select(1, -1).sub_(nan + inf + padding)
    return StatsTable(moments, counts, by_tensor)


def _norms_of_group(tensors: list[Tensor]) -> Tensor:
    """Return the norms of tensors of one device and type, on that device."""
    layout = Layout(tensors, padding=0.0)
    found: list[Tensor] = []
    for results, batch in batches(layout, NORM_COLUMNS, lambda x, chunk, out: reduce_norms(x, out)):
        found.append(join_norms(row_norms(results), send(batch.rows, layout.device)))
    norms = torch.cat(found)
    return join_norms(norms, send(layout.runs, layout.device)) if _apart(layout.runs) else norms


def _owners(chunk: Chunk, device: torch.device) -> Tensor:
    """Return the tensor that each row of a chunk belongs to, int64 [R]."""
    return send(chunk.owners, device).repeat_interleave(send(chunk.rows, device), output_size=chunk.filled)


def _apart(runs: Counts) -> bool:
    """Whether any tensor lies in no run of rows, or in several."""
    return bool((runs != 1).any())


def _groups(tensors: list[Tensor]) -> list[list[int]]:
    """Return the positions of the tensors of each device and type."""
    if len({tensor.dtype for tensor in tensors}) == 1 and len({tensor.device for tensor in tensors}) == 1:
        return [list(range(len(tensors)))]
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(i)
    return list(groups.values())


def _inverse(groups: list[list[int]], device: torch.device) -> Tensor:
    order = [i for members in groups for i in members]
    back = [0] * len(order)
    for position, i in enumerate(order):
        back[i] = position
    return send(back, device)
