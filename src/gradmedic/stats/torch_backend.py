"""The torch backend: any device, no host synchronisation, a number of launches that follows the volume of data only.

torch has no foreach operation for sums, minima or counts. Tensors of one device and type are therefore concatenated
into matrices of bounded size, reduced by rows, and the rows of each tensor joined by segments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

import torch
from torch import Tensor

from gradmedic.stats.table import StatsTable
from gradmedic.stats.torch_chunks import Chunk, chunks
from gradmedic.stats.torch_parts import Parts, concatenate, join, join_norms, publish
from gradmedic.stats.torch_rows import row_bins, row_norms, row_parts
from gradmedic.types import HISTOGRAM_BINS


def measure(tensors: list[Tensor], histogram: bool) -> StatsTable:
    """Return the table [N] of plain strided tensors, on their `home`."""
    device = home(tensors)
    moments = [torch.zeros(6, 0, dtype=torch.float64, device=device)]
    counts = [torch.zeros(4, 0, dtype=torch.int64, device=device)]
    bins = [torch.zeros(0, HISTOGRAM_BINS, dtype=torch.int64, device=device)]
    order: list[int] = []
    for members, cut in _groups(tensors):
        found = [_measure_chunk(chunk, histogram) for chunk in cut]
        owners, lengths = _runs(members, cut)
        parts, hist = concatenate([part for part, _ in found]), [part for _, part in found if part is not None]
        if len(owners) < sum(lengths):
            at = send(lengths, parts.finite.device)
            parts, hist = join(parts, at), [_join_bins(torch.cat(hist), at)] if histogram else []
        for column, of_group in zip((moments, counts), publish(parts), strict=True):
            column.append(of_group.to(device, non_blocking=True))
        bins += [part.to(device, non_blocking=True) for part in hist]
        order += owners
    back = _inverse(order, device)
    return StatsTable(
        torch.cat(moments, dim=1).index_select(1, back),
        torch.cat(counts, dim=1).index_select(1, back),
        torch.cat(bins).index_select(0, back) if histogram else None,
    )


def norms(tensors: list[Tensor]) -> Tensor:
    """Return the L2 norms float64 [N] of plain strided tensors, on their `home`; NaN and infinity propagate."""
    device = home(tensors)
    found = [torch.zeros(0, dtype=torch.float64, device=device)]
    order: list[int] = []
    for members, cut in _groups(tensors):
        owners, lengths = _runs(members, cut)
        values = torch.cat([_chunk_norms(chunk) for chunk in cut])
        if len(owners) < sum(lengths):
            values = join_norms(values, send(lengths, values.device))
        found.append(values.to(device, non_blocking=True))
        order += owners
    return torch.cat(found).index_select(0, _inverse(order, device))


def home(tensors: list[Tensor]) -> torch.device:
    """Return where the results live: the first device that is not the CPU, for nothing may wait for that one."""
    return next((t.device for t in tensors if t.device.type != "cpu"), torch.device("cpu"))


def _measure_chunk(chunk: Chunk, histogram: bool) -> tuple[Parts, Tensor | None]:
    """Return the statistics, and the histograms [P, 64], of the P pieces of one chunk."""
    x = chunk.matrix(padding=math.nan)
    lengths = send(chunk.rows(), x.device)
    hist = None
    if histogram:
        segments = torch.arange(len(chunk.pieces), device=x.device).repeat_interleave(lengths, output_size=x.shape[0])
        hist = row_bins(x, segments, len(chunk.pieces))
    parts = join(row_parts(x), lengths)
    if hist is not None:
        hist.select(1, 0).sub_(parts.zeros.long())
        hist.select(1, -1).sub_((parts.nan + parts.inf).long())
    parts.nan.sub_(send(chunk.padding(), x.device))
    return parts, hist


def _chunk_norms(chunk: Chunk) -> Tensor:
    x = chunk.matrix(padding=0.0)
    return join_norms(row_norms(x), send(chunk.rows(), x.device))


def _groups(tensors: list[Tensor]) -> Iterator[tuple[list[int], list[Chunk]]]:
    """Yield, for each device and type, the positions of its tensors and the chunks into which they are cut."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(i)
    for members in groups.values():
        yield members, list(chunks([tensors[i] for i in members]))


def _runs(members: list[int], cut: list[Chunk]) -> tuple[list[int], list[int]]:
    """Return which tensors the pieces of all chunks belong to, in their order, and how many pieces each has."""
    runs = [(owner, len(list(run))) for owner, run in groupby(owner for chunk in cut for owner in chunk.owners)]
    return [members[owner] for owner, _ in runs], [length for _, length in runs]


def _join_bins(bins: Tensor, lengths: Tensor) -> Tensor:
    rows = torch.arange(lengths.shape[0], device=bins.device).repeat_interleave(lengths, output_size=bins.shape[0])
    return bins.new_zeros(lengths.shape[0], HISTOGRAM_BINS).index_add_(0, rows, bins)


def _inverse(order: list[int], device: torch.device) -> Tensor:
    back = [0] * len(order)
    for position, i in enumerate(order):
        back[i] = position
    return send(back, device)


def send(values: list[int], device: torch.device) -> Tensor:
    """Return int64 values on the device without waiting for it; `torch.tensor(..., device=...)` would wait."""
    return torch.tensor(values, dtype=torch.int64, device="cpu").to(device, non_blocking=True)
