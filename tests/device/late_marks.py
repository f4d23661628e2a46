"""A device that is behind: copies are there only when their event is reached, and until then there is nonsense."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from gradmedic import host_copies


class LateMark:
    """An event that is reached when the device is told to go on, or when somebody waits for it."""

    def __init__(self, device: LateDevice, view: torch.Tensor, values: torch.Tensor) -> None:
        self._device, self._view, self._values = device, view, values
        self.reached = False

    def query(self) -> bool:
        self._device.queries += 1
        if self._device.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self.reached

    def synchronize(self) -> None:
        """Everything before it comes first, as on a stream."""
        self._device.waits += 1
        while not self.reached:
            self._device.go_on()

    def reach(self) -> None:
        self._view.copy_(self._values)
        self.reached = True


class LateDevice:
    """Stands for a device whose tensors lie on the CPU.

    Args:
        behind: how many copies are under way until the first of them arrives by itself; None: none ever does.
    """

    def __init__(self, behind: int | None = None) -> None:
        self.behind = behind
        self.marks: list[LateMark] = []
        self.queries = self.waits = self.copies = 0
        self.broken = False

    def go_on(self, copies: int = 1) -> None:
        """Let the oldest copies arrive."""
        for mark in [each for each in self.marks if not each.reached][:copies]:
            mark.reach()

    @property
    def under_way(self) -> int:
        return sum(not mark.reached for mark in self.marks)

    def begin(self, copy: host_copies.HostCopy, memory: torch.Tensor, flat: torch.Tensor) -> None:
        """In place of `HostCopy.begin`."""
        view = memory.narrow(0, 0, flat.numel() * flat.itemsize).view(flat.dtype)
        mark = LateMark(self, view, flat.detach().clone())
        view.fill_(torch.nan)
        self.marks.append(mark)
        self.copies += 1
        copy._under_way = host_copies._UnderWay(mark, memory, view)
        if self.behind is not None and self.under_way > self.behind:
            self.go_on()


@contextmanager
def late_device(behind: int | None = None) -> Iterator[LateDevice]:
    """Have copies from the CPU, which is a device now, arrive late."""
    device = LateDevice(behind)

    def begin(self: Any, memory: torch.Tensor, flat: torch.Tensor) -> None:
        device.begin(self, memory, flat)

    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(host_copies.MARKS, "cpu", lambda _: None)
        patched.setattr(host_copies, "_pinned", lambda size: torch.empty(size, dtype=torch.uint8))
        patched.setattr(host_copies.HostCopy, "begin", begin)
        yield device
