"""Frames between the device and the host, in the order of their steps.

A step that is to be recorded sends its numbers off and goes on; at later steps those that have arrived are taken out.
What the user logs for the last step joins it wherever it is, and what has happened meanwhile waits for the frames that
were made before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gradmedic.frame import Frame
from gradmedic.host_copies import HostCopies
from gradmedic.probes.parcel import Parcel
from gradmedic.probes.pending import PendingFrame


@dataclass(slots=True, eq=False)
class Traveller:
    """One step's frame, from the moment in which it is made until the recorder has it.

    Attributes:
        pending: the step, until its numbers are sent off.
        keep: whether it belongs to the record.
        frame: the step, once its numbers are here.
        numbers: what was logged for it since they were sent off.
        tensors: the same, still on a device.
        owed: parcels under way that bring such numbers.
        settled: keys whose number is newer than what parcels under way bring for them.
        events: what happened after it, and before the next one.
    """

    pending: PendingFrame | None
    keep: bool
    frame: Frame | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    owed: int = 0
    settled: set[str] = field(default_factory=set)
    events: list[dict[str, Any]] = field(default_factory=list)

    def log(self, given: Mapping[str, torch.Tensor | float]) -> None:
        """Add the user's numbers."""
        if self.pending is not None:
            self.pending.log(given)
            return
        for key, value in given.items():
            if isinstance(value, torch.Tensor):
                self.tensors[key] = value
                self.settled.discard(key)
            else:
                self.tensors.pop(key, None)
                self.settled.add(key)
                self.put(key, value)

    def put(self, key: str, value: float) -> None:
        """Add a number that is on the host."""
        if self.frame is None:
            self.numbers[key] = value
        elif key == "loss":
            self.frame.loss = value
        else:
            self.frame.logged = {**self.frame.logged, key: value}

    def land(self, frame: Frame) -> None:
        """Its numbers are here."""
        self.frame = frame
        for key, value in self.numbers.items():
            self.put(key, value)
        self.numbers.clear()

    @property
    def complete(self) -> bool:
        """Whether nothing that was logged for it is still on its way."""
        return self.frame is not None and not self.tensors and not self.owed


@dataclass(slots=True)
class _Shipment:
    """One parcel under way, and what is to be done with its contents."""

    parcel: Parcel
    frames: deque[tuple[Traveller, Callable[[], Frame]]]
    logged: list[tuple[Traveller, str, int]]
    open: bool = False


class Transit:
    """Sends frames to the host, and hands them out when they are there; not thread-safe by itself.

    Args:
        copies: the ring through which they travel.
    """

    def __init__(self, copies: HostCopies) -> None:
        self.copies = copies
        self._unsent: list[Traveller] = []
        self._late: list[Traveller] = []
        self._under_way: deque[_Shipment] = deque()
        self._last: Traveller | None = None  # the last one that is not here

    @property
    def unsent(self) -> int:
        """How many frames have not been sent off."""
        return len(self._unsent)

    def add(self, pending: PendingFrame) -> Traveller:
        """Take a step that was made; `send` sends it off."""
        self._last = traveller = Traveller(pending, pending.keep)
        self._unsent.append(traveller)
        return traveller

    def log(self, traveller: Traveller, given: Mapping[str, torch.Tensor | float]) -> None:
        """Add what the user has logged for a step."""
        traveller.log(given)
        if traveller.tensors and all(each is not traveller for each in self._late):
            self._late.append(traveller)

    def hold(self, event: dict[str, Any]) -> bool:
        """Keep something that happened until the frames made before it are here; False if all of them are."""
        if self._last is None:
            return False
        self._last.events.append(event)
        return True

    def send(self) -> None:
        """Send off everything that still lies on the device, in one parcel."""
        unsent, self._unsent = self._unsent, []
        late, self._late = self._late, []
        if not unsent and not late:
            return
        parcel = Parcel()
        frames = deque((each, each.pending.pack(parcel)) for each in unsent if each.pending is not None)
        logged = [(each, key, parcel.add(value)) for each in late for key, value in each.tensors.items()]
        for each in unsent:
            each.pending = None
        for each in late:
            each.owed += 1
            each.tensors = {}
        parcel.send(self.copies)
        self._under_way.append(_Shipment(parcel, frames, logged))

    def landed(self, *, wait: bool = False) -> Iterator[Traveller]:
        """Yield the frames that have arrived since, in order.

        Args:
            wait: for all that were sent off.
        """
        while (shipment := self._arrived(wait)) is not None:
            if not shipment.frames:
                self._under_way.popleft()
                continue
            traveller, finish = shipment.frames.popleft()
            if traveller is self._last:
                self._last = None
            traveller.land(finish())
            yield traveller

    def _arrived(self, wait: bool) -> _Shipment | None:
        """Return the oldest shipment, opened, if it is here."""
        shipment = self._under_way[0] if self._under_way else None
        try:
            if shipment is None or not (wait or shipment.parcel.arrived):
                return None
            if not shipment.open:
                self._open(shipment)
        except RuntimeError:  # the device has failed, and would fail whoever asks again
            self.forget()
            raise
        return shipment

    @staticmethod
    def _open(shipment: _Shipment) -> None:
        shipment.open = True
        shipment.parcel.open()
        for owner, key, place in shipment.logged:
            value = shipment.parcel.number(place)
            if value is not None and key not in owner.settled:
                owner.put(key, value)
        for owner in {id(owner): owner for owner, _, _ in shipment.logged}.values():
            owner.owed -= 1

    def forget(self) -> None:
        """Drop everything: in a forked child it is the parent's, and what a device has that has failed is lost."""
        self._unsent, self._late, self._last = [], [], None
        self._under_way.clear()
