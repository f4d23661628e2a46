"""Tensors on their way between host and device, without the host waiting where it need not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from gradmedic.errors import InputError

#: Devices whose copies from pageable memory may wait for the stream; from pinned memory they never do.
_PINNING = frozenset({"cuda", "xpu"})


class Constants:
    """What a computation sends to a device, kept there, so that the same computation once more sends nothing.

    A CUDA graph would repeat a copy from host memory that is long in use for something else.
    """

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._next: int | None = None

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Keep what is sent inside, in order."""
        self._kept, self._next = [], None
        with self._in_force():
            yield

    @contextmanager
    def reused(self) -> Iterator[None]:
        """Hand out what was kept, in the same order, in place of sending anything."""
        self._next = 0
        with self._in_force():
            yield

    @contextmanager
    def _in_force(self) -> Iterator[None]:
        before = getattr(_in_force, "constants", None)
        _in_force.constants = self
        try:
            yield
        finally:
            _in_force.constants = before

    def get(self, values: Tensor, device: torch.device) -> Tensor:
        """Return values on a device: sent and kept, or kept from the last time."""
        if self._next is None:
            self._kept.append(_sent(values, device))
            return self._kept[-1]
        if self._next == len(self._kept) or self._kept[self._next].shape != values.shape:
            raise InputError("expected tensors of the shapes that they had when this was made; make it anew for others")
        self._next += 1
        return self._kept[self._next - 1]


_in_force = threading.local()


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return host values on a device, without waiting for it.

    A copy from pageable memory may first have to wait for all that the stream has to do, `non_blocking` or not. One
    from pinned memory never does, and torch's allocator keeps that memory until the copy is made.

    Args:
        values: any tensor on the CPU.
        device: where it is wanted; the CPU itself costs nothing.

    Returns:
        The values there; `values` itself where that is the CPU.
    """
    constants: Constants | None = getattr(_in_force, "constants", None)
    return _sent(values, device) if constants is None else constants.get(values, device)


def _sent(values: Tensor, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return values
    if device.type in _PINNING and torch.get_device_module(device).is_initialized():  # a fake device is not
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def moved(values: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return values on another device, and of another type; waits only where the host itself is to read them.

    With `non_blocking`, torch would hand out memory of the host's that has not been written yet.
    """
    if values.device == device:
        return values if dtype is None else values.to(dtype)
    if values.device.type == "cpu":
        return to_device(values if dtype is None else values.to(dtype), device)
    return values.to(device, dtype or values.dtype, non_blocking=device.type != "cpu")
