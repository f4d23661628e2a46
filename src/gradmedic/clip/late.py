"""Reading flags that lie on a device without waiting for the device: some steps late."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradmedic.host_copies import HostCopies


class LateFlags:
    """Copies of flags on their way to the host, all in one copy.

    Args:
        flags: 0-d bool, at least one, on one device of any kind; they may change right afterwards.
        copies: the ring through which they travel.
    """

    def __init__(self, flags: Sequence[torch.Tensor], copies: HostCopies) -> None:
        self._copy = copies.send(torch.stack([flag.detach() for flag in flags]).to(torch.float32))

    def read(self) -> list[bool] | None:
        """Return the flags, in order, or None while they have not arrived."""
        if not self._copy.arrived:
            return None
        return [bool(value) for value in self._copy.take()]
