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
    arrived: int
    written: bool = False
    lost: bool = False  # counted as dropped already


class Intake:
    """Decides what of a frame goes to the writer, and keeps the last full frames.

    Args:
        steps, tensors, modules: the policies of the three streams.
        flight: number of frames, and of frames with tensor tables, that are held of each optimizer.
    """

    def __init__(self, steps: Thinning, tensors: Thinning, modules: Thinning, flight: int) -> None:
        self.lock = threading.Lock()
        self.dropped = 0
        self.added = 0
        #: Bytes of a row on file, which the writer corrects as it learns.
        self.row_bytes: dict[str, float] = {kind: 0.7 * size for kind, size in ROW_BYTES.items()}
        self._thinning = {"steps": steps, "tensors": tensors, "modules": modules}
        self._length = max(1, flight)
        self._flight: dict[str, deque[_Held]] = {}
        self._rows: dict[str, deque[_Held]] = {}
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
            written = self._thinning["steps"].admit(frame.step, ordinal, int(self.row_bytes["steps"]), frame.optimizer)
            if written:
                self._add_row(self._pending.steps, (frame, ordinal))
            self._hold(self._rows, _Held(frame, ordinal, self.added, written))
            if tensors:
                self._take_table(frame, keep)
            if frame.modules:
                self._take_modules(frame)
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

    def _take_modules(self, frame: Frame) -> None:
        ordinal, self._module_count = self._module_count, self._module_count + 1
        if self._thinning["modules"].admit(frame.step, ordinal, int(len(frame.modules) * self.row_bytes["modules"])):
            for row in frame.modules:
                self._add_row(
                    self._pending.modules, ({**row, "step": frame.step, "optimizer": frame.optimizer}, ordinal)
                )

    def dump(self) -> None:
        """Hand over the held tables that were not written, and guard all held steps."""
        with self.lock:
            self.added += 1
            ranges: dict[str, tuple[int, int]] = {}
            for held in self._tables():
                low, high = ranges.get(held.frame.optimizer, (held.frame.step, held.frame.step))
                ranges[held.frame.optimizer] = min(low, held.frame.step), max(high, held.frame.step)
            for low, high in ranges.values():
                for thinning in self._thinning.values():
                    thinning.guard(low, high + 1)
            for held in self._tables():
                if not held.written:
                    self._offer(held)

    def protect(self, step: int) -> None:
        """Guard the surroundings of a step in all streams; held tables of them that were thinned out are written."""
        with self.lock:
            self.added += 1
            for thinning in self._thinning.values():
                thinning.protect(step)
            for held in self._tables():
                if held.ordinal >= 0 and not held.written and self._thinning["tensors"].guarded(held.frame.step):
                    self._offer(held)

    def finish(self) -> None:
        """The run ends: hand over what is held of its last steps and was thinned out, in the order in which it came."""
        with self.lock:
            rows, tables = self._thinning["steps"].tail(), self._thinning["tensors"].tail()
            for held in self._in_order(self._rows):
                if not held.written and held.frame.step in rows:
                    held.written = True
                    self.added += 1
                    self._add_row(self._pending.steps, (held.frame, held.ordinal))
            for held in self._tables():
                late = held.ordinal >= 0 and held.frame.step in tables
                if late and not held.written and not held.lost:
                    self.added += 1
                    self._add_table(held)

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
        held = _Held(frame, ordinal, self.added)
        if keep:
            self._offer(held)
        self._hold(self._flight, held)

    def _hold(self, held: dict[str, deque[_Held]], newest: _Held) -> None:
        held.setdefault(newest.frame.optimizer, deque(maxlen=self._length)).append(newest)

    def _tables(self) -> list[_Held]:
        return self._in_order(self._flight)

    @staticmethod
    def _in_order(held: dict[str, deque[_Held]]) -> list[_Held]:
        return sorted((each for of_one in held.values() for each in of_one), key=lambda each: each.arrived)

    def _offer(self, held: _Held) -> None:
        frame = held.frame
        size = int(len(frame.tensors.names) * self.row_bytes["tensors"])
        if self._thinning["tensors"].admit(frame.step, held.ordinal, size, frame.optimizer):
            self._add_table(held)

    def _add_table(self, held: _Held) -> None:
        table, waiting = held.frame.tensors, self._pending
        size = len(table.names) * ROW_BYTES["tensors"]
        if table.log2_hist is not None:
            size += table.log2_hist.nbytes
        if waiting.table_bytes + size > _WAITING_BYTES and len(waiting.tensors) >= _WAITING_TABLES:
            self.dropped += 1
            held.lost = True
            return
        waiting.table_bytes += size
        waiting.tensors.append((held.frame, held.ordinal))
        held.written = True

    def _add_row(self, rows: list[Any], row: Any) -> None:
        if len(rows) >= _WAITING_ROWS:
            self.dropped += 1
        else:
            rows.append(row)
