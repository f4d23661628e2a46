"""What the training thread hands over: a bounded queue, and the flight recorder of the last frames.

Everything here takes microseconds and waits for nothing but other threads doing the same.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradmedic.frame import Frame
from gradmedic.record.schema import ROW_BYTES
from gradmedic.record.thinning import Thinning

#: Tensor tables that wait to be written may take this many bytes of memory, or be this many.
_WAITING_BYTES, _WAITING_TABLES = 64 << 20, 4
#: Scalars, events and module rows that may wait.
_WAITING_ROWS = 1 << 16
_TEXT_BYTES = 16 << 20


@dataclass(slots=True)
class Pending:
    """What waits for the writer; every frame and row with its ordinal."""

    steps: list[tuple[Frame, int]] = field(default_factory=list)
    tensors: list[tuple[Frame, int]] = field(default_factory=list)
    modules: list[tuple[Mapping[str, Any], int]] = field(default_factory=list)
    events: list[tuple[str, bytes]] = field(default_factory=list)
    table_bytes: int = 0
    text_bytes: int = 0

    def __len__(self) -> int:
        return len(self.steps) + len(self.tensors) + len(self.modules) + len(self.events)


@dataclass(slots=True)
class _Held:
    frame: Frame
    ordinal: int
    written: bool


class Intake:
    """Decides what of a frame goes to the writer, and keeps the last full frames.

    Args:
        steps, tensors, modules: the policies of the three streams.
        flight: number of frames with tensor tables that are held.
    """

    def __init__(self, steps: Thinning, tensors: Thinning, modules: Thinning, flight: int) -> None:
        self.lock = threading.Lock()
        self.dropped = 0
        self.added = 0
        #: Bytes of a row on file, which the writer corrects as it learns.
        self.row_bytes: dict[str, float] = {kind: 0.7 * size for kind, size in ROW_BYTES.items()}
        self._thinning = {"steps": steps, "tensors": tensors, "modules": modules}
        self._flight: deque[_Held] = deque(maxlen=max(1, flight))
        self._pending = Pending()
        self._step_counts: Counter[str] = Counter()
        self._table_counts: Counter[str] = Counter()
        self._module_count = 0

    def put(self, frame: Frame, keep: bool) -> int:
        """Take a frame; return how many things wait."""
        tensors = len(frame.tensors.names) if frame.tensors is not None else 0
        with self.lock:
            self.added += 1
            ordinal = self._step_counts[frame.optimizer]
            self._step_counts[frame.optimizer] = ordinal + 1
            if self._thinning["steps"].admit(frame.step, ordinal, int(self.row_bytes["steps"])):
                self._add_row(self._pending.steps, (frame, ordinal))
            if tensors:
                self._take_table(frame, keep)
            return len(self._pending)

    def event(self, kind: str, line: bytes) -> int:
        """Take an event, ready as a line of text; return how many things wait."""
        with self.lock:
            self.added += 1
            if self._pending.text_bytes + len(line) > _TEXT_BYTES and self._pending.events:
                self.dropped += 1
            else:
                self._pending.text_bytes += len(line)
                self._add_row(self._pending.events, (kind, line))
            return len(self._pending)

    def modules(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Take the module rows of one step; return how many things wait."""
        taken = [dict(row) for row in rows]
        if not taken:
            return 0
        step = int(taken[0].get("step") or 0)
        with self.lock:
            self.added += 1
            ordinal, self._module_count = self._module_count, self._module_count + 1
            if self._thinning["modules"].admit(step, ordinal, int(len(taken) * self.row_bytes["modules"])):
                for row in taken:
                    self._add_row(self._pending.modules, (row, ordinal))
            return len(self._pending)

    def dump(self) -> None:
        """Hand over the held tables that were not written, and guard all held steps."""
        with self.lock:
            self.added += 1
            ranges: dict[str, tuple[int, int]] = {}
            for held in self._flight:
                low, high = ranges.get(held.frame.optimizer, (held.frame.step, held.frame.step))
                ranges[held.frame.optimizer] = min(low, held.frame.step), max(high, held.frame.step)
            for low, high in ranges.values():
                for thinning in self._thinning.values():
                    thinning.guard(low, high + 1)
            for held in self._flight:
                if not held.written:
                    held.written = self._offer(held.frame, held.ordinal)

    def protect(self, step: int) -> None:
        """Guard the surroundings of a step in all streams; held tables of them that were thinned out are written."""
        with self.lock:
            self.added += 1
            for thinning in self._thinning.values():
                thinning.protect(step)
            for held in self._flight:
                if held.ordinal >= 0 and not held.written and self._thinning["tensors"].guarded(held.frame.step):
                    held.written = self._offer(held.frame, held.ordinal)

    def take(self) -> tuple[Pending, int]:
        """Return all that waits, and the count of everything that was handed in until now."""
        with self.lock:
            pending, self._pending = self._pending, Pending()
            return pending, self.added

    def _take_table(self, frame: Frame, keep: bool) -> None:
        ordinal = -1
        if keep:
            ordinal = self._table_counts[frame.optimizer]
            self._table_counts[frame.optimizer] = ordinal + 1
        self._flight.append(_Held(frame, ordinal, keep and self._offer(frame, ordinal)))

    def _offer(self, frame: Frame, ordinal: int) -> bool:
        rows = len(frame.tensors.names)
        if not self._thinning["tensors"].admit(frame.step, ordinal, int(rows * self.row_bytes["tensors"])):
            return False
        size = rows * ROW_BYTES["tensors"]
        if frame.tensors.log2_hist is not None:
            size += frame.tensors.log2_hist.nbytes
        waiting = self._pending
        if waiting.table_bytes + size > _WAITING_BYTES and len(waiting.tensors) >= _WAITING_TABLES:
            self.dropped += 1
            return False
        waiting.table_bytes += size
        waiting.tensors.append((frame, ordinal))
        return True

    def _add_row(self, rows: list[Any], row: Any) -> None:
        if len(rows) >= _WAITING_ROWS:
            self.dropped += 1
        else:
            rows.append(row)
