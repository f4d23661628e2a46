"""What measures and scales tensors that lie on a device: Triton's kernels where they can, torch operations elsewhere.

A kernel that cannot be compiled or launched is not tried again: it is said once, and torch's operations do the work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from gradmedic.stats import torch_backend, triton_backend
from gradmedic.stats.table import StatsTable
from gradmedic.stats.triton_backend import TritonStats
from gradmedic.stats.triton_treatment import TritonTreatment

R = TypeVar("R")
_log = logging.getLogger("gradmedic")


class Kernels:
    """The kernels of this process, until one of them fails.

    Attributes:
        problem: why they are not used any more; None while they are, or have not been needed.
    """

    def __init__(self) -> None:
        self.problem: str | None = None
        self._stats = TritonStats()
        self._lock = threading.Lock()

    def can(self, tensors: list[Tensor]) -> bool:
        """Whether all of N >= 1 tensors lie on one device and can be read in place there."""
        if self.problem is not None or not tensors or not all(map(triton_backend.readable, tensors)):
            return False
        return len({tensor.device for tensor in tensors}) == 1 and triton_backend.kernels() is not None

    def measure(self, tensors: list[Tensor], histogram: bool) -> StatsTable | None:
        """Return the table of tensors for which it `can`, on their device; None where the kernels fail."""
        return self._try(lambda stats: stats.measure(tensors, histogram))

    def treat(self, tensors: list[Tensor], work: Callable[[TritonTreatment, set[int]], object]) -> list[int]:
        """Let kernels change tensors in place; returns the positions of those that are left to torch's operations.

        Args:
            tensors: what is changed.
            work: changes them, and adds to the set the positions of those that are done.
        """
        done: set[int] = set()
        if self.can(tensors):
            self._try(lambda stats: work(stats.treatment, done))
            increment_version([tensors[at] for at in done])  # no operation of torch's has told autograd
        return [at for at in range(len(tensors)) if at not in done]

    def _try(self, work: Callable[[TritonStats], R]) -> R | None:
        if self.problem is not None or triton_backend.kernels() is None:
            return None
        try:
            with self._lock:
                return work(self._stats)
        except torch.OutOfMemoryError as error:
            self._stats = TritonStats()
            self._give_up(error)
        except Exception as error:
            self._give_up(error)
        return None

    def _give_up(self, error: Exception) -> None:
        self.problem = f"{type(error).__name__}: {error}"
        _log.warning(
            "the compiled device kernels cannot be used here, torch operations measure instead (%s)", self.problem
        )


kernels = Kernels()


def measure(tensors: list[Tensor], histogram: bool) -> StatsTable:
    """Return the table [N] of plain strided tensors on any devices, on their home; no host synchronisation."""
    pieces: list[tuple[list[int], StatsTable]] = []
    for positions in _by_kernel(tensors):
        table = kernels.measure([tensors[at] for at in positions], histogram)
        if table is not None:
            pieces.append((positions, table))
    if not pieces:
        return torch_backend.measure(tensors, histogram)
    done = {at for positions, _ in pieces for at in positions}
    left = [at for at in range(len(tensors)) if at not in done]
    if left:
        pieces.append((left, torch_backend.measure([tensors[at] for at in left], histogram)))
    return pieces[0][1] if len(pieces) == 1 else _assembled(pieces, torch_backend.home(tensors))


def _by_kernel(tensors: list[Tensor]) -> list[list[int]]:
    """Return, for each device, the positions of the tensors that kernels can read there."""
    groups: dict[torch.device, list[int]] = {}
    for at, tensor in enumerate(tensors):
        if triton_backend.readable(tensor):
            groups.setdefault(tensor.device, []).append(at)
    return list(groups.values())


def _assembled(pieces: list[tuple[list[int], StatsTable]], home: torch.device) -> StatsTable:
    back = [0] * sum(len(positions) for positions, _ in pieces)
    for place, at in enumerate(at for positions, _ in pieces for at in positions):
        back[at] = place
    order = torch_backend.send(back, home)
    tables = [table for _, table in pieces]
    bins = [table.log2_hist.to(home, non_blocking=True) for table in tables if table.log2_hist is not None]
    return StatsTable(
        torch.cat([table.moments.to(home, non_blocking=True) for table in tables], dim=1).index_select(1, order),
        torch.cat([table.counts.to(home, non_blocking=True) for table in tables], dim=1).index_select(1, order),
        torch.cat(bins).index_select(0, order) if bins else None,
    )
