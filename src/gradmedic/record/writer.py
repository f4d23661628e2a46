"""The thread that writes: takes what waits, makes batches of it, appends them, keeps to the budget.

It is the only one that touches files. Whatever goes wrong there is counted and said once; nothing is ever thrown at
the training thread, and nothing makes it wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from gradmedic.record.intake import Intake, Pending
from gradmedic.record.layout import is_record, parse_name, part_name
from gradmedic.record.rows import RowBuilder
from gradmedic.record.schema import ROW_BYTES, SCHEMAS
from gradmedic.record.segments import SegmentedStream
from gradmedic.record.store import Store
from gradmedic.record.strict_json import dumps
from gradmedic.record.thinning import Thinning

#: A crash loses what came within so many seconds, or so many frames, whichever is less.
FLUSH_SECONDS, FLUSH_FRAMES = 1.0, 64

#: Parts of the budget. Tensor tables get all that the others leave.
_STEPS_PART, _MODULES_PART, _EVENTS_PART, _KEY_EVENTS_PART = 1 / 8, 1 / 16, 1 / 16, 1 / 4
#: Of each part, what guarded steps may take.
_GUARDED_PART = 3 / 8
#: Scalars of the first and the last steps, and of those around a finding, fit in so many bytes, which small budgets
#: spare for them as far as a quarter goes.
_ENOUGH_FOR_STEPS = 64 << 10
_SEGMENTS_OF_A_PART = 16
_SMALLEST_SEGMENT = 16 * 1024
_LARGEST_BATCH = 8 << 20

#: Events that are kept when others no longer are.
_KEY_EVENTS = frozenset({"facts", "finding", "end"})
_LOOK_AROUND_SECONDS = 30.0
_LONGEST_PAUSE = 60.0


class Writer:
    """Writes the record of one process.

    Args:
        store: where to.
        rank: of the process, in its names.
        process: the process's own name.
        budget: bytes that the whole store may take.
        flight: frames that the flight recorder holds.
        lazy_end: write an end mark only if anything else was written (a forked child that never trained).
    """

    def __init__(
        self, store: Store, *, rank: int, process: str, budget: int, flight: int, lazy_end: bool = False
    ) -> None:
        self.process = process
        self.problem: str | None = None
        self.closed = False
        self._store, self._budget, self._limit = store, budget, budget
        self._lazy_end = lazy_end
        self._streams: dict[str, SegmentedStream] = {}
        thinnings = {}
        parts = {"steps": _steps_part(budget), "modules": int(budget * _MODULES_PART), "tensors": budget}
        for kind, part in parts.items():
            thinnings[kind] = Thinning(int(part * _GUARDED_PART))
            segment = max(part // _SEGMENTS_OF_A_PART, min(_SMALLEST_SEGMENT, part // 4))
            prefix = part_name(kind, rank, process).rsplit(".", 1)[0]
            self._streams[kind] = SegmentedStream(store, SCHEMAS[kind], prefix, thinnings[kind], segment)
        self.intake = Intake(flight=flight, **thinnings)
        self._events_name = part_name("events", rank, process)
        self._events_bytes = 0
        self._rows = RowBuilder()
        self._lost = 0
        self._wake = threading.Event()
        self._progress = threading.Condition()
        self._done = 0
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._resume_at = self._pause = 0.0
        self._looked_at = -_LOOK_AROUND_SECONDS

    @property
    def dropped(self) -> int:
        """Frames, tables, module rows and events that were lost: the queue was full, or writing failed."""
        return self.intake.dropped + self._lost

    def added(self, waiting: int) -> None:
        """Say that so many things wait now; wakes the thread when they are many."""
        if self._thread is None:
            self._start()
        if waiting >= FLUSH_FRAMES:
            self._wake.set()

    def wake(self) -> None:
        """Write what waits soon."""
        self.added(FLUSH_FRAMES)

    def fail(self, lost: int, error: BaseException | str) -> None:
        """Count what was lost and remember the first reason."""
        self._lost += lost
        if self.problem is None:
            reason = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            self.problem = f"the record is incomplete: {reason}"

    def flush(self, timeout: float | None) -> bool:
        """Write all that was handed in; whether that was done within `timeout` seconds (None: however long)."""
        goal = self.intake.added
        if self._thread is None:
            if not goal:
                return True
            self._start()
        self._wake.set()
        with self._progress:
            return self._progress.wait_for(lambda: self._done >= goal or self.closed, timeout) and self._done >= goal

    def close(self, reason: str, timeout: float = 30.0) -> None:
        """Write what waits and the end mark, then end the thread. Later calls do nothing."""
        with self._starting:
            if self.closed:
                return
            if not self._lazy_end or self.intake.added:
                self.intake.finish()
                self.intake.event("end", _line(self._end_event(reason)))
            self.closed = True
        self._wake.set()
        if self._thread is None:
            self._finish()
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            self.fail(0, f"the file system did not answer within {timeout:g} s at the end of the run")

    def _end_event(self, reason: str) -> dict[str, Any]:
        return {
            "kind": "end",
            "time": time.time(),
            "reason": reason,
            "dropped": self.dropped,
            "problem": self.problem,
        }

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None or self.closed:
                return
            thread = threading.Thread(target=self._work, name="gradmedic-record", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is shutting down: close() writes what waits
                return
            self._thread = thread

    def _work(self) -> None:
        while not self.closed:
            self._wake.wait(FLUSH_SECONDS)
            self._wake.clear()
            self._write_pending()
        self._finish()

    def _finish(self) -> None:
        self._write_pending()
        for stream in self._streams.values():
            self._guarded(0, stream.close)
        with self._progress:
            self._progress.notify_all()

    def _write_pending(self) -> None:
        pending, upto = self.intake.take()
        if len(pending):
            if time.monotonic() < self._resume_at:
                self._lost += len(pending)
            else:
                self._guarded(0, self._look_around)
                self._write(pending)
        with self._progress:
            self._done = upto
            self._progress.notify_all()

    def _write(self, pending: Pending) -> None:
        events_limit = int(self._limit * _EVENTS_PART)
        self._guarded(len(pending.events), lambda: self._write_events(pending.events, events_limit))
        self._write_rows("steps", pending.steps, self._rows.steps, _steps_part(self._limit))
        self._write_rows("modules", pending.modules, self._rows.modules, int(self._limit * _MODULES_PART))
        others = self._events_bytes + self._streams["steps"].size + self._streams["modules"].size
        for group in self._groups(pending.tensors):
            self._write_rows("tensors", group, self._rows.tensors, self._limit - others)

    def _write_rows(self, kind: str, rows: list[Any], build: Callable[[Sequence[Any]], Any], part: int) -> None:
        if not rows:
            return
        stream = self._streams[kind]
        # A thinned segment lies beside the one that it replaces for a moment.
        limit = part - stream.segment_bytes
        batches = self._batches(rows, build)
        lost = len(rows) if len(batches) == 1 else 1
        for batch in batches:
            self._guarded(lost, lambda batch=batch: self._append(stream, batch, limit, lost))  # type: ignore[misc]
        if stream.bytes_per_row:
            self.intake.row_bytes[kind] = stream.bytes_per_row

    def _append(self, stream: SegmentedStream, batch: pa.RecordBatch, limit: int, rows: int) -> None:
        if not stream.append(batch, limit):
            self.fail(rows, "the budget leaves no room for what one step brings")

    def _batches(self, rows: list[Any], build: Callable[[Sequence[Any]], Any]) -> list[pa.RecordBatch]:
        try:
            return [build(rows)]
        except Exception as error:  # a value of a kind that has no place in a column costs its own row only
            if len(rows) == 1:
                self.fail(1, error)
                return []
        return [batch for row in rows for batch in self._batches([row], build)]

    def _groups(self, tables: list[Any]) -> list[list[Any]]:
        """Cut waiting tables into batches of bounded size."""
        most = min(_LARGEST_BATCH, self._streams["tensors"].segment_bytes)
        groups: list[list[Any]] = []
        size = most
        for table in tables:
            rows = len(table[0].tensors.names)
            more = rows * ROW_BYTES["tensors"]
            if size + more > most:
                groups.append([])
                size = 0
            groups[-1].append(table)
            size += more
        return groups

    def _write_events(self, events: list[tuple[str, bytes]], limit: int) -> None:
        lines: list[bytes] = []
        size = self._events_bytes
        for kind, line in events:
            if size + len(line) > (self._limit * _KEY_EVENTS_PART if kind in _KEY_EVENTS else limit):
                self.fail(1, "the budget leaves no room for more events")
                continue
            lines.append(line)
            size += len(line)
        if lines:
            self._store.append(self._events_name, b"".join(lines), self._events_bytes)
            self._events_bytes = size

    def _guarded(self, lost: int, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            self.fail(lost, error)
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause or FLUSH_SECONDS)
            self._resume_at = time.monotonic() + self._pause
        except Exception as error:  # our own fault costs the rows, not the thread
            self.fail(lost, error)

    def _look_around(self) -> None:
        """Share the budget with other processes that write to the same place."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_AROUND_SECONDS:
            return
        self._looked_at = now
        processes, foreign = {self.process}, 0
        for name, size in self._store.sizes().items():
            parts = parse_name(name)
            if parts is not None and parts.process == self.process and parts.kind != "run":
                continue
            if is_record(name):
                foreign += size
            if parts is not None and parts.kind != "run":
                processes.add(parts.process)
        self._limit = max(self._budget // len(processes), self._budget - foreign)


def _steps_part(budget: int) -> int:
    return max(int(budget * _STEPS_PART), min(_ENOUGH_FOR_STEPS, budget // 4))


def _line(event: dict[str, Any]) -> bytes:
    return dumps(event).encode() + b"\n"
