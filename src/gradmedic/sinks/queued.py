"""A sink behind a bounded queue, in a daemon thread: whatever it does, training does not wait for it.

A frame is queued only once nothing writes to it any more (see `feed`); a sink that is not ours gets a copy,
made in its thread.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from typing import Any, NamedTuple

from gradmedic.sinks.base import BaseSink, RunLabel
from gradmedic.sinks.frame_copy import own_copy
from gradmedic.sinks.sink_checks import check_count, check_seconds, check_sink
from gradmedic.types import HISTOGRAM_BINS, Sink

#: A backend may take a while to open, while a small model makes a hundred steps a second.
CAPACITY = 8192
#: Most numbers that may wait, of 8 bytes each.
_MOST_NUMBERS = 4_000_000
#: What an entry of a dict takes beside the characters of its key, and what one module's row takes.
_ENTRY_NUMBERS, _MODULE_NUMBERS = 20, 64
#: Room beyond the capacity that only findings may use: they are few, and matter more than one frame of thousands.
_FOR_FINDINGS = 64
_QUIET_SECONDS = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
PATIENCE = 10.0


class _Item(NamedTuple):
    method: str
    content: Any
    numbers: int


_END = _Item("close", None, 0)


class Queued:
    """Hands frames and findings to a sink in a thread of its own.

    `gm.watch` puts every sink behind one that is not `direct`; make one yourself to choose its size.

    Args:
        sink: has `emit(frame)`, `emit_finding(finding)`, `close()`; all are called in one thread.
        capacity: frames that may wait, >= 1 (fewer, where they would take more than 32 MB); further ones are left out,
            and counted.
        patience: seconds that `close` waits for what is still to be written, finite, >= 0.

    Raises:
        InputError: `sink` is a class or lacks a method, or a number is out of its range.

    Attributes:
        sent, dropped: frames and findings that the sink has taken, and that were left out or failed.
        trouble: what has gone wrong, in words; None so far.
        off: whether the sink has failed for good and is called no more.

    Example:
        >>> class Count:
        ...     def __init__(self): self.steps = 0
        ...     def emit(self, frame): self.steps += 1
        ...     def emit_finding(self, finding): ...
        ...     def close(self): ...
        >>> queued = Queued(Count())
        >>> queued.emit("a frame")
        >>> queued.close()
        >>> queued.sink.steps, queued.dropped
        (1, 0)
    """

    direct = True  # it has its queue already

    def __init__(self, sink: Sink, *, capacity: int = CAPACITY, patience: float = PATIENCE) -> None:
        check_sink(sink, "Queued")
        check_count(capacity, "Queued: capacity", 1)
        check_seconds(patience, "Queued: patience")
        self.sink = sink
        self.sent = 0
        self.trouble: str | None = None
        self.off = False
        self.patience = patience
        self._capacity = capacity
        self._wants_frames = getattr(sink, "wants_frames", True)
        self._reads_only = type(sink).__module__.startswith("gradmedic.sinks.")  # ours need no copy
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._refused = 0  # counted in the training thread
        self._lost = 0  # counted in the sink's
        self._given = self._taken = 0  # numbers: the first is counted in the training thread, the second in the sink's
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._pause = _FIRST_PAUSE
        self._resume_at = 0.0

    def __repr__(self) -> str:
        return f"Queued({self.sink!r})"

    @property
    def dropped(self) -> int:
        """Frames and findings that the sink did not get."""
        return self._refused + self._lost

    def begin(self, run: RunLabel) -> None:
        """Tell the sink which run this is, and start its thread; after `close` it may be begun again."""
        if self._closing and (self._thread is None or not self._thread.is_alive()):
            self._closing = self.off = False
            self._thread = self.trouble = None
        if isinstance(self.sink, BaseSink):
            self.sink.begin(run)
        self._start()

    def emit(self, frame: Any) -> None:
        """Queue a frame; a full queue leaves it out."""
        if self._wants_frames:
            self._put(_Item("emit", frame, _numbers_of(frame)), self._capacity)

    def emit_finding(self, finding: Any) -> None:
        """Queue a finding; there is always some room for it."""
        self._put(_Item("emit_finding", finding, 0), self._capacity + _FOR_FINDINGS)

    def close(self) -> None:
        """Have everything written and the sink closed, for at most `patience` seconds."""
        self.ask_to_close()
        self.wait(time.monotonic() + self.patience)

    def ask_to_close(self) -> None:
        """Begin to close, without waiting."""
        if self._closing or os.getpid() != self._process:
            return
        self._closing = True
        if self._thread is None:  # nothing has come: close it all the same, where anything might block
            self._start()
        self._items.put(_END)

    def wait(self, deadline: float) -> bool:
        """Wait for the end until `deadline` (of `time.monotonic`); return whether it has come.

        A sink that has not finished by then is left to its thread, which ends with the process.
        """
        if self.ended(deadline):
            return True
        self._lost += self._items.qsize()
        self.off = True
        self.trouble = self.trouble or "TimeoutError: did not finish in time"
        return False

    def ended(self, until: float) -> bool:
        """Return whether the end comes until then (of `time.monotonic`); nothing is given up if it does not."""
        thread = self._thread
        if thread is None or os.getpid() != self._process:
            return True
        if thread is threading.current_thread():  # closed by its own sink
            return True
        thread.join(min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX))
        return not thread.is_alive()

    def _put(self, item: _Item, room: int) -> None:
        # In a forked child there is no thread to take it, and the connection belongs to the parent.
        if self.off or self._closing or os.getpid() != self._process:
            return
        if self._items.qsize() >= room or (item.numbers and self._given - self._taken > _MOST_NUMBERS):
            self._refused += 1
            return
        if self._thread is None:
            self._start()
        self._given += item.numbers
        self._items.put(item)

    def _start(self) -> None:
        if self._thread is not None or os.getpid() != self._process:
            return
        thread = threading.Thread(target=self._work, name=f"gradmedic {type(self.sink).__name__}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the interpreter is ending, or the process may have no more threads
            self._fail(error)
            return
        self._thread = thread

    def _work(self) -> None:
        while True:
            holding = self._holds_back()
            try:
                item = self._items.get(timeout=_QUIET_SECONDS if holding else None)
            except queue.Empty:
                if time.monotonic() >= self._resume_at:
                    self._call("flush")
                continue
            if item is _END:
                break
            self._taken += item.numbers
            if self.off:
                continue
            if time.monotonic() < self._resume_at:
                self._lost += 1
                continue
            self._call(item.method, item.content)
            del item  # no frame is kept alive while nothing comes
        with contextlib.suppress(BaseException):
            self._close_sink()

    def _holds_back(self) -> bool:
        try:
            return not self.off and isinstance(self.sink, BaseSink) and bool(self.sink.holding)
        except BaseException as error:  # a property of a sink may raise what it likes
            self._fail(error)
            return False

    def _close_sink(self) -> None:
        try:
            self.sink.close()
        except BaseException as error:  # a sink in its own thread may raise what it likes
            self._fail(error)

    def _call(self, method: str, *content: Any) -> None:
        try:
            getattr(self.sink, method)(*(content if self._reads_only else map(own_copy, content)))
        except BaseException as error:
            self._lost += len(content)
            if getattr(self.sink, "keeps_trying", False) and isinstance(error, Exception) and not _is_final(error):
                self._resume_at = time.monotonic() + self._pause
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                self.trouble = self.trouble or self._describe(error)
            else:
                self._fail(error)
        else:
            self.sent += len(content)
            self._pause = _FIRST_PAUSE

    def _fail(self, error: BaseException) -> None:
        self.off = True
        self.trouble = self.trouble or self._describe(error)

    def _describe(self, error: BaseException) -> str:
        return describe(error, getattr(self.sink, "secrets", ()))


def describe(error: BaseException, secrets: Any = ()) -> str:
    """Return an error in one line, without the secrets; never raises."""
    from gradmedic.errors import InputError

    try:
        text = str(error)
        for secret in secrets:
            text = text.replace(secret, "***") if secret else text
    except Exception:
        text = ""
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())[:500]
    if isinstance(error, InputError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _numbers_of(frame: Any) -> int:
    tensors = getattr(frame, "tensors", ())
    histograms = getattr(tensors, "log2_hist", None)
    logged, modules = getattr(frame, "logged", ()), getattr(frame, "modules", ())
    names = 0 if not logged else sum(map(len, logged)) // 8  # a character takes a byte, if it is ASCII
    table = len(tensors) * (16 if histograms is None else 16 + HISTOGRAM_BINS)
    return 64 + table + names + _ENTRY_NUMBERS * len(logged) + _MODULE_NUMBERS * len(modules)


def _is_final(error: Exception) -> bool:
    """Whether trying again is no use: an argument is wrong, a library is missing."""
    from gradmedic.errors import InputError

    return isinstance(error, InputError | ImportError)
