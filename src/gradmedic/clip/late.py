"""Reading a flag that lies on a device without waiting for the device: one step late."""

from __future__ import annotations

from typing import Any

import torch


class LateFlag:
    """A copy of a flag on its way to the host.

    Args:
        flag: 0-d bool, on any device.
    """

    def __init__(self, flag: torch.Tensor) -> None:
        self._event: Any = None
        if flag.device.type == "cuda":
            # Into pinned memory: a copy to pageable memory would either wait for the stream or not be there yet.
            self._value = torch.empty((), dtype=torch.bool, pin_memory=True)
            self._value.copy_(flag, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(flag.device))
        else:
            self._value = flag.detach().to("cpu").clone()

    def read(self) -> bool | None:
        """Return the flag, or None while it has not arrived."""
        if self._event is not None and not self._event.query():
            return None
        return bool(self._value)
