"""Ends of training that only the device knows of: read some steps late, while no further step is made."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradmedic.clip.base import Halt, Reason
from gradmedic.clip.late import LateFlags
from gradmedic.host_copies import HostCopies
from gradmedic.stats.transfer import moved

#: Why a step is skipped between the one that ends training and the moment at which the host knows of it.
ENDING = "a guard has ended training at a step before"


class LateHalts:
    """Flags of halts on their way to the host, and on the device whether one of them is set.

    Flags whose `on_trip` is a function bind no step but their own: training goes on after it.

    Args:
        copies: the ring through which they travel.
    """

    def __init__(self, copies: HostCopies) -> None:
        self._copies = copies
        self._under_way: list[tuple[LateFlags, tuple[Halt | None, ...]]] = []
        self._ending: torch.Tensor | None = None

    def send(self, halts: Sequence[Halt]) -> None:
        """Send the flags of one step, which lie on one device."""
        if not halts:
            return
        self._under_way.append((LateFlags([halt.flag for halt in halts], self._copies), tuple(halts)))
        for halt in halts:
            if not callable(halt.on_trip):
                flag = halt.flag.detach()
                self._ending = flag.clone() if self._ending is None else moved(self._ending, flag.device) | flag

    def arrived(self) -> list[Halt]:
        """Return those that have tripped, oldest first, of the flags that are here by now; each once."""
        waiting, self._under_way = self._under_way, []
        tripped: list[Halt] = []
        for late, halts in waiting:
            flags = late.read()
            if flags is None:
                self._under_way.append((late, halts))
            else:
                tripped += [halt for halt, flag in zip(halts, flags, strict=True) if flag and halt]
        return tripped

    def skip(self, device: torch.device) -> Reason | None:
        """Return why a step may be skipped: the end of training is under way.

        Args:
            device: of the optimizer. One on the host beside a device would wait for it, and is left alone.
        """
        ending = self._ending
        if ending is None or (device.type == "cpu") != (ending.device.type == "cpu"):
            return None
        return Reason(moved(ending, device), ENDING)

    def ended(self) -> None:
        """The host has ended training: what else was to end it is dealt with, and a loop that goes on begins anew."""
        self._ending = None
        # All flags of a step travel in one copy: those that would end training no longer count, but keep their places.
        still = [
            (late, tuple(h if h and callable(h.on_trip) else None for h in halts)) for late, halts in self._under_way
        ]
        self._under_way = [(late, halts) for late, halts in still if any(halts)]
