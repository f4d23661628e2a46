"""Joining tables: the statistics of two parts give those of the whole, without the elements."""

from __future__ import annotations

import torch
from torch import Tensor

from gradmedic.errors import InputError
from gradmedic.stats.table import StatsTable


def merge(a: StatsTable, b: StatsTable) -> StatsTable:
    """Join two tables row by row: row i describes the elements behind row i of `a` and of `b` together.

    Use it for shards of one tensor, or for tensors that arrive in parts.

    Args:
        a: one table.
        b: another of the same length, on the same device, with a histogram if and only if `a` has one.

    Returns:
        A new table with the names of `a`; no host synchronisation.

    Raises:
        InputError: the lengths differ, or only one table has a histogram.

    Example:
        >>> merge(gradient_stats([torch.tensor([3.0])]), gradient_stats([torch.tensor([4.0])])).norm
        tensor([5.], dtype=torch.float64)

    References:
        Chan, Golub, LeVeque (1979), Updating formulae and a pairwise algorithm for computing sample variances.
    """
    if len(a) != len(b):
        raise InputError(f"expected two tables of one length, got {len(a)} and {len(b)} rows; merge the same tensors")
    if (a.log2_hist is None) != (b.log2_hist is None):
        raise InputError("expected both tables or neither with a histogram; measure both with the same `histogram`")
    n_a, n_b = _finite(a), _finite(b)
    n = (n_a + n_b).clamp(min=1)
    share_a, share_b = n_a / n, n_b / n

    max_abs = torch.maximum(a.max_abs, b.max_abs)
    min_abs = torch.where(n_a == 0, b.min_abs, torch.where(n_b == 0, a.min_abs, torch.minimum(a.min_abs, b.min_abs)))
    mean = a.mean * share_a + b.mean * share_b
    mean_abs = a.mean_abs * share_a + b.mean_abs * share_b
    # In units of the largest value, for the squares of 1e200 do not fit into float64.
    unit = torch.where(max_abs > 0, max_abs, 1.0)
    between = (a.mean / unit - b.mean / unit).square() * share_a * share_b
    within = (a.std / unit).square() * share_a + (b.std / unit).square() * share_b
    std = (within + between).sqrt() * unit

    moments = torch.stack([torch.hypot(a.norm, b.norm), max_abs, min_abs, mean, std, mean_abs])
    histogram = a.log2_hist + b.log2_hist if a.log2_hist is not None and b.log2_hist is not None else None
    return StatsTable(moments, a.counts + b.counts, histogram, a.names)


def add_zeros(table: StatsTable, zeros: Tensor) -> StatsTable:
    """Join to each row that many zeros (int64 [N]): what a sparse tensor does not store."""
    nothing = torch.zeros_like(zeros)
    histogram = None if table.log2_hist is None else torch.zeros_like(table.log2_hist)
    counts = torch.stack([zeros, zeros, nothing, nothing])
    return merge(table, StatsTable(torch.zeros_like(table.moments), counts, histogram))


def _finite(table: StatsTable) -> Tensor:
    return (table.numel - table.nan_count - table.inf_count).to(table.moments.dtype)
