"""Statistics that a captured CUDA graph takes each time it is replayed, without the host."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradmedic.errors import InputError
from gradmedic.stats import torch_backend, triton_backend
from gradmedic.stats.inputs import Tensors, label, materialise, unwrap
from gradmedic.stats.table import StatsTable
from gradmedic.stats.transfer import Constants
from gradmedic.stats.triton_backend import TritonStats
from gradmedic.stats.triton_tables import TableCache, Tables


class CapturableStats:
    """Statistics of fixed tensors, to be taken inside a CUDA graph: everything lies on the device, cadence included.

    While a graph is captured, the hooks of a monitor do nothing, and when it is replayed none of them runs. `record`
    may be captured instead: it counts its calls on the device, and writes `table` at every `every`-th one. Nothing is
    sent to the device or read from it, then or later; what lies in `table` is read when somebody asks for it.

    Make it before the capture begins, with the gradients in the memory that the graph will use (after the warm-up
    steps, and with `zero_grad(set_to_none=False)` or gradients that the graph itself allocates). Making it measures
    once, and waits for the device.

    It reads the memory that the tensors had when it was made. A `p.grad` that is replaced afterwards, as the default
    `zero_grad()` and the next `backward()` do, is another tensor: the table goes on telling of the old one, and nothing
    says so.

    Args:
        tensors: dense tensors on one device, as for `gradient_stats`, which keep their memory.
        histogram: also count the powers of two.
        every: calls from one table to the next, >= 1. Where a call is none of them, the compiled kernels read no
            gradient; torch's operations, which serve where there are none, do all their work and throw it away.

    Attributes:
        table: a `StatsTable` in memory of its own: of the last call that was due, all zeros before the first.
        calls: number of calls, 0-d int64 on the device.
        measured: which call the table is of, from 0; 0-d int64 on the device, -1 before the first.
        every: 0-d int64 on the device; change the cadence between replays with `every.fill_(n)`, n >= 1;
            what is below counts as 1.

    Raises:
        InputError: the tensors are sparse, or on several devices, or none; or `every` is no positive integer.

    Example:
        >>> gradients = [torch.tensor([3.0, 4.0])]
        >>> stats = CapturableStats(gradients, every=2)
        >>> stats.record()  # inside `with torch.cuda.graph(graph):`
        >>> float(stats.table.norm[0]), int(stats.measured)
        (5.0, 0)
    """

    @torch.inference_mode(False)  # tensors that are made in that mode could not be written outside it
    def __init__(self, tensors: Tensors, *, histogram: bool = False, every: int = 1) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InputError(f"every: expected a positive integer, got {every!r}")
        names, items = materialise(tensors)
        self._tensors = [unwrap(item, label(names, at)) for at, item in enumerate(items)]
        home = _home(self._tensors)
        self._histogram = histogram
        self._constants = Constants()
        self._kernels = _FixedKernels(self._tensors) if all(map(triton_backend.readable, self._tensors)) else None
        if triton_backend.kernels() is None:
            self._kernels = None
        with torch.no_grad(), self._constants.gathered():
            like = self._measure(torch.ones((), dtype=torch.bool, device=home))
        _wait_for(home)
        bins = None if like.log2_hist is None else torch.zeros_like(like.log2_hist)
        self.table = StatsTable(torch.zeros_like(like.moments), torch.zeros_like(like.counts), bins, names)
        self.calls = torch.zeros((), dtype=torch.int64, device=home)
        self.measured = torch.full((), -1, dtype=torch.int64, device=home)
        self.every = torch.full((), every, dtype=torch.int64, device=home)

    @torch.no_grad()
    def record(self) -> None:
        """Count a call and, where it is due, write the table; may be captured, and called without a graph as well."""
        due = self.calls.remainder(self.every.clamp(min=1)) == 0
        with self._constants.reused():
            fresh = self._measure(due)
        for kept, values in _columns(self.table, fresh):
            kept.copy_(torch.where(due, values, kept))
        self.measured.copy_(torch.where(due, self.calls, self.measured))
        self.calls.add_(1)

    def _measure(self, due: Tensor) -> StatsTable:
        if self._kernels is not None:
            return self._kernels.measure(self._tensors, self._histogram, due)
        return torch_backend.measure(self._tensors, self._histogram)


class _FixedKernels:
    """The compiled kernels with tables that were sent once: a graph must not send any."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tables = TableCache().of(tensors)

    def measure(self, tensors: list[Tensor], histogram: bool, due: Tensor) -> StatsTable:
        """Return the table, of tensors without elements where it is not due: nothing is read then."""
        stats, tables = TritonStats(), self._tables
        stats._cache = _FixedTables(replace(tables, numels=tables.numels * due, starts=tables.starts * due))
        return stats.measure(tensors, histogram)


class _FixedTables(TableCache):
    def __init__(self, tables: Tables) -> None:
        super().__init__()
        self._tables = tables

    def of(self, tensors: list[Tensor]) -> Tables:
        return self._tables


def _home(tensors: list[Tensor]) -> torch.device:
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1:
        raise InputError(f"expected tensors on one device, got {len(devices)} devices; make one for each")
    if any(tensor.layout != torch.strided for tensor in tensors):
        raise InputError("expected dense tensors, got a sparse one, whose memory changes; leave it out")
    return devices.pop()


def _wait_for(device: torch.device) -> None:
    """Have on the device what was sent there, for the stream that captures may be another one."""
    if device.type in ("cuda", "xpu"):
        torch.get_device_module(device).synchronize(device)


def _columns(table: StatsTable, fresh: StatsTable) -> list[tuple[Tensor, Tensor]]:
    pairs = [(table.moments, fresh.moments), (table.counts, fresh.counts)]
    if table.log2_hist is not None and fresh.log2_hist is not None:
        pairs.append((table.log2_hist, fresh.log2_hist))
    return pairs
