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
from gradmedic.stats.triton_elements import element, known
from gradmedic.stats.triton_tables import TableCache, on
from gradmedic.stats.triton_treatment import TritonTreatment
from gradmedic.types import HISTOGRAM_BINS

_DEVICES = ("cuda", "xpu")
#: A block gives each thread eight elements, so that what its lanes gather stays in some 90 registers: five programs a
#: processor, each with four blocks on their way at a time, which is what it takes to keep its memory busy.
_BLOCK, _GROUP, _WARPS = 1024, 4, 4
#: The combination of few chunks a tensor, as of thousands of small ones, and of many, as of one of a billion elements.
_FEW = {"BLOCK": 32, "ROWS": 8, "num_warps": 1}
_MANY = {"BLOCK": 1024, "ROWS": 128, "num_warps": 8}


@cache
def kernels() -> Any:
    """Return the module of the kernels, or None where Triton is not installed."""
    try:
        return importlib.import_module("gradmedic.stats.triton_kernels")
    except ImportError:
        return None


@cache
def combining() -> Any:
    """Return the module of the kernel that combines; ImportError where Triton is not installed."""
    return importlib.import_module("gradmedic.stats.triton_combining_kernels")


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on CPU tensors: to test them where there is no device."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def readable(tensor: Tensor) -> bool:
    """Whether the kernels can read a tensor in place: dense, contiguous, of a type they know, on a device of theirs.

    Not a subclass: a DTensor's own address, for one, is not that of its elements, and would end the process.
    """
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return False
    place = tensor.device.type
    return (
        (place in _DEVICES or (place == "cpu" and interpreted()))
        and known(tensor.dtype)
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
    )


class TritonStats:
    """Measures tensors; keeps the tables of those it saw last.

    Attributes:
        treatment: changes tensors, with the same tables.
    """

    def __init__(self) -> None:
        self._cache = TableCache()
        self.treatment = TritonTreatment(self._cache)
        self._launches = 0

    @property
    def launches(self) -> int:
        """Kernels launched so far."""
        return self._launches + self.treatment.launches

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
        with on(device):
            for launch in tables.launches:
                kernels().measure_chunks[(launch.chunks,)](
                    tables.addresses,
                    tables.numels,
                    tables.owners,
                    tables.starts,
                    launch.first,
                    tables.length,
                    partials,
                    bins,
                    tables.chunks,
                    HISTOGRAM=histogram,
                    GROUP=_GROUP,
                    **_constants(launch.dtype, launch.aligned),
                )
            combining().combine_chunks[(count,)](
                partials,
                bins,
                tables.first_chunks,
                tables.numels,
                tables.positions,
                moments,
                counts,
                table_bins,
                count,
                tables.chunks,
                HISTOGRAM=histogram,
                **(_FEW if tables.most <= _FEW["BLOCK"] else _MANY),
            )
        self._launches += len(tables.launches) + 1
        return StatsTable(moments, counts, table_bins if histogram else None)


def _constants(dtype: torch.dtype, aligned: bool) -> dict[str, Any]:
    return {
        "ELEMENT": element(dtype),
        "WIDE": dtype == torch.float64,
        "ALIGNED": aligned,
        "BLOCK": _BLOCK,
        "num_warps": _WARPS,
    }
