"""Copies from a device to the host that nobody waits for: a ring of pinned memory, and an event behind each copy.

The copy is queued on the stream that makes the values, like any kernel; the host looks later whether the event behind
it has been reached. What has arrived is copied out, so that its memory serves the next copy. There is a bound on the
memory that is pinned: where the device is so far behind that nothing is left, the host waits for the oldest copy, and
for no more than that.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]
_log = logging.getLogger("gradmedic")

#: Pinned memory of one ring, and the smallest piece of it.
MOST_BYTES = 64 << 20
_LEAST_BYTES = 1 << 12
_NOTHING: Floats = np.empty(0)


class Mark(Protocol):
    """A place in what a device has to do; torch's events are such."""

    def query(self) -> bool:
        """Whether the device has got there."""

    def synchronize(self) -> None:
        """Wait until it has."""


def _event(device: torch.device) -> Mark:
    module = torch.get_device_module(device)
    event: Mark = module.Event()
    event.record(module.current_stream(device))  # type: ignore[attr-defined]
    return event


def _pinned(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)


#: Kinds of devices that have events; copies from others are waited for.
MARKS: dict[str, Callable[[torch.device], Mark]] = {"cuda": _event, "xpu": _event}


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """The event behind a copy, the memory that it was given, and the part of it that the values fill."""

    mark: Mark
    memory: Tensor
    view: Tensor


class HostCopy:
    """Values on their way; made by `HostCopies.send`."""

    __slots__ = ("_ring", "_under_way", "_values")

    def __init__(self, ring: HostCopies, values: Floats) -> None:
        self._ring = ring
        self._values = values
        self._under_way: _UnderWay | None = None

    def begin(self, memory: Tensor, flat: Tensor) -> None:
        """Queue the copy of `flat` into pinned memory, and an event behind it."""
        view = memory.narrow(0, 0, flat.numel() * flat.itemsize).view(flat.dtype)
        view.copy_(flat, non_blocking=True)
        self._under_way = _UnderWay(MARKS[flat.device.type](flat.device), memory, view)

    @property
    def arrived(self) -> bool:
        """Whether the values can be taken without waiting."""
        return self._under_way is None or self._under_way.mark.query()

    def take(self) -> Floats:
        """Return the values, float64 [n]; waits for them if it must, which the ring counts."""
        there = self._under_way
        if there is not None:
            if not there.mark.query():
                self._ring.waited()
                there.mark.synchronize()
            self._values = there.view.numpy().astype(np.float64, copy=True)
            self._under_way = None
            self._ring.free(self, there.memory)
        return self._values


class HostCopies:
    """A ring of pinned memory for copies from devices; not thread-safe by itself.

    Args:
        most_bytes: bound on pinned memory; a single larger copy gets what it needs.

    Attributes:
        waits: how often the host has waited for a device: for a copy that was asked for before it was there, for the
            oldest one where memory had run out, or because the device has no events.
        over: whether training is over: waiting then holds up nothing, and is not counted.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.waits = 0
        self.over = False
        self._most = most_bytes
        self._held = 0
        self._free: list[Tensor] = []
        self._under_way: deque[HostCopy] = deque()
        self._broken = False

    @staticmethod
    def needed(tensor: Tensor) -> bool:
        """Whether a tensor's values have to travel before the host can read them."""
        return tensor.device.type != "cpu" or "cpu" in MARKS

    @torch.no_grad()
    def send(self, flat: Tensor) -> HostCopy:
        """Begin the copy of a vector; its memory may be used for something else right afterwards.

        Args:
            flat: 1-D, float32 or float64. On the CPU, and on devices without events, the values are there at once.
        """
        kind = flat.device.type
        if kind in MARKS and not self._broken and flat.numel():
            copy = HostCopy(self, _NOTHING)
            try:
                copy.begin(self._memory(flat.numel() * flat.itemsize), flat)
            except RuntimeError as error:  # no memory could be pinned: what follows raises whatever is worse
                self._broken = True
                _log.warning("no pinned memory for copies from %s, which are waited for instead (%s)", kind, error)
            else:
                self._under_way.append(copy)
                return copy
        if kind != "cpu":
            self.waited()
        return HostCopy(self, flat.cpu().numpy().astype(np.float64, copy=False))

    def waited(self) -> None:
        """The host has waited for a device."""
        self.waits += not self.over

    def _memory(self, size: int) -> Tensor:
        """Return pinned memory of at least `size` bytes."""
        while True:
            fitting = [each for each in self._free if each.numel() >= size]
            if fitting:
                chosen = min(fitting, key=torch.Tensor.numel)
                self._free = [each for each in self._free if each is not chosen]
                return chosen
            wanted = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
            if self._held + wanted > self._most and self._free:
                self._held -= sum(each.numel() for each in self._free)
                self._free = []
            if self._held + wanted <= self._most or not self._under_way:
                memory = _pinned(wanted)
                self._held += wanted
                return memory
            self._under_way[0].take()

    def free(self, copy: HostCopy, memory: Tensor) -> None:
        """A copy has arrived, and was copied out."""
        self._under_way = deque(each for each in self._under_way if each is not copy)
        self._free.append(memory)
