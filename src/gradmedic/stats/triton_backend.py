"""The triton backend: all statistics of any number of tensors in one read of their memory, on their device.

One launch goes over all chunks of each type (two where some tensors do not begin at a multiple of 16 bytes), and one
combines them by tensors. Nothing is read back to the host.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gradmedic.stats.table import StatsTable
from gradmedic.stats.triton_tables import BLOCK, BLOCKS, TableCache, Tables
from gradmedic.types import HISTOGRAM_BINS

#: Types that the kernels read, by the names that Triton has for them.
_ELEMENTS = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float8_e4m3fn: "float8e4nv",
    torch.float8_e5m2: "float8e5",
}
_DEVICES = ("cuda", "xpu")
_WARPS = 8
_COMBINED, _COMBINED_ROWS = 256, 32


@cache
def kernels() -> Any:
    """Return the module of the kernels, or None where Triton is not installed."""
    try:
        return importlib.import_module("gradmedic.stats.triton_kernels")
    except ImportError:
        return None


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on CPU tensors: to test them where there is no device."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def readable(tensor: Tensor) -> bool:
    """Whether the kernels can read a tensor in place: dense, contiguous, of a type they know, on a device of theirs.

    Not a subclass: a DTensor's own address, for one, is not that of its elements, and would end the process.
    """
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return False
    there = tensor.device.type in _DEVICES or (tensor.device.type == "cpu" and interpreted())
    return (
        there
        and tensor.dtype in _ELEMENTS
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
    )


class TritonStats:
    """Measures and scales tensors; keeps the tables of those it saw last."""

    def __init__(self) -> None:
        self._cache = TableCache()
        #: Kernels launched so far.
        self.launches = 0

    @property
    def sent(self) -> int:
        """How often a table was sent to the device."""
        return self._cache.sent

    @torch.no_grad()
    def measure(self, tensors: list[Tensor], histogram: bool) -> StatsTable:
        """Return the table [N] of N >= 1 tensors that are `readable`, on their one device; no host synchronisation."""
        device, count = tensors[0].device, len(tensors)
        tables = self._cache.of(tensors)
        partials = torch.empty(kernels().PARTIALS, tables.chunks, dtype=torch.float64, device=device)
        bins = torch.empty(tables.chunks if histogram else 0, HISTOGRAM_BINS, dtype=torch.int32, device=device)
        moments = torch.empty(6, count, dtype=torch.float64, device=device)
        counts = torch.empty(4, count, dtype=torch.int64, device=device)
        table_bins = torch.empty(count if histogram else 0, HISTOGRAM_BINS, dtype=torch.int64, device=device)
        for launch in tables.launches:
            kernels().measure_chunks[(launch.chunks,)](
                tables.addresses,
                tables.numels,
                tables.owners,
                tables.starts,
                launch.first,
                partials,
                bins,
                tables.chunks,
                HISTOGRAM=histogram,
                **_constants(launch.dtype, launch.aligned),
            )
        kernels().combine_chunks[(count,)](
            partials,
            bins,
            tables.first_chunks,
            tables.numels,
            moments,
            counts,
            table_bins,
            count,
            tables.chunks,
            HISTOGRAM=histogram,
            BLOCK=_COMBINED,
            ROWS=_COMBINED_ROWS,
        )
        self.launches += len(tables.launches) + 1
        return _in_order(StatsTable(moments, counts, table_bins if histogram else None), tables)

    @torch.no_grad()
    def scale(self, tensors: list[Tensor], factors: Tensor) -> bool:
        """Multiply each of N >= 1 tensors in place by its factor, in float32 or wider; one of 1 costs no access.

        Args:
            tensors: `readable`, on one device, each once.
            factors: float64 [N] on that device; never read back.

        Returns:
            True.
        """
        tables = self._cache.of(tensors)
        mine = factors if tables.inverse is None else torch.empty_like(factors).scatter_(0, tables.inverse, factors)
        for launch in tables.launches:
            kernels().scale_chunks[(launch.chunks,)](
                tables.addresses,
                tables.numels,
                tables.owners,
                tables.starts,
                launch.first,
                mine,
                **_constants(launch.dtype, launch.aligned),
            )
        self.launches += len(tables.launches)
        return True


def _constants(dtype: torch.dtype, aligned: bool) -> dict[str, Any]:
    language = importlib.import_module("triton.language")
    return {
        "ELEMENT": getattr(language, _ELEMENTS[dtype]),
        "WIDE": dtype == torch.float64,
        "ALIGNED": aligned,
        "BLOCK": BLOCK,
        "BLOCKS": BLOCKS,
        "num_warps": _WARPS,
    }


def _in_order(table: StatsTable, tables: Tables) -> StatsTable:
    back = tables.inverse
    if back is None:
        return table
    histogram = None if table.log2_hist is None else table.log2_hist.index_select(0, back)
    return StatsTable(table.moments.index_select(1, back), table.counts.index_select(1, back), histogram)
