"""Optimizer steps within optimizer steps: the outermost one counts.

SAM steps its base optimizer, wrappers step what they wrap. An inner step is one that begins in the same thread while
another, which shares a tensor with it, has not ended. An optimizer that raised never ends its step: its entry is
dropped when it begins again.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

from gradmedic.holdings import held_by


@dataclass(slots=True)
class _Entry:
    optimizer: int
    reference: weakref.ref[Any]
    nested: bool


class StepStack:
    """The steps that are being made, by thread."""

    def __init__(self) -> None:
        self._by_thread: dict[int, list[_Entry]] = {}

    def begin(self, optimizer: Any) -> bool:
        """Note that an optimizer begins to step; returns whether it is an inner step."""
        thread = threading.get_ident()
        entries = self._by_thread.setdefault(thread, [])
        key = id(optimizer)
        for place, entry in enumerate(entries):
            if entry.optimizer == key:  # it raised the last time
                del entries[place:]
                break
        nested = bool(entries) and not _tensors(optimizer).isdisjoint(
            key for entry in entries for key in _tensors(entry.reference())
        )
        entries.append(_Entry(key, weakref.ref(optimizer), nested))
        return nested

    def end(self, optimizer: Any) -> bool:
        """Note that it has stepped; returns whether it was an outermost step that had begun."""
        thread = threading.get_ident()
        entries = self._by_thread.get(thread, [])
        for place in range(len(entries) - 1, -1, -1):
            if entries[place].optimizer == id(optimizer):
                outermost = not entries[place].nested
                del entries[place:]
                if not entries:
                    self._by_thread.pop(thread, None)
                return outermost
        return False


def _tensors(optimizer: Any | None) -> set[int]:
    return set() if optimizer is None else {id(p) for p in held_by(optimizer)}
