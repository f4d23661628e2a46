"""Recorders: what a monitor hands its frames and events to."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradmedic.errors import InputError
from gradmedic.frame import Frame
from gradmedic.record.beginning import prepare
from gradmedic.record.budget import parse_budget
from gradmedic.record.layout import RUN_FILE, new_process_id, parse_name, part_name
from gradmedic.record.run import Run
from gradmedic.record.schema import FORMAT_VERSION
from gradmedic.record.store import FolderStore, MemoryStore
from gradmedic.record.strict_json import dumps
from gradmedic.record.writer import Writer

_live: weakref.WeakSet[_Recorder] = weakref.WeakSet()
_fork_handler_installed = False


class _Recorder:
    """What recorders share: all but the place where the bytes go."""

    path: Path | None = None

    def __init__(
        self, store: FolderStore | MemoryStore, meta: Mapping[str, Any], rank: int, budget: int, flight: int
    ) -> None:
        self._store = store
        self._settings: dict[str, Any] = {"rank": rank, "budget": budget, "flight": flight}
        self._run: Run | None = None
        self._open_writer(lazy_end=False)
        self._write_meta(meta, rank)
        _watch_forks(self)

    @property
    def process(self) -> str:
        """The name of this process in the record."""
        return self._writer.process

    @property
    def dropped(self) -> int:
        """How many frames, tensor tables and events were lost: queue full, or writing failed."""
        return self._writer.dropped

    @property
    def problem(self) -> str | None:
        """The first thing that went wrong while writing; None if nothing did."""
        return self._writer.problem

    @property
    def run(self) -> Run:
        """The record so far, what was put a moment ago included. Waits up to 5 s for the writer."""
        self.flush(5.0)
        if self._run is None:
            self._run = Run(self._store, self.path)
        else:
            self._run.reload()
        return self._run

    def put(self, frame: Frame, *, keep: bool) -> None:
        """Record a frame; returns within microseconds and never raises.

        Args:
            frame: must not be changed afterwards.
            keep: write its tensor table too; otherwise that is held among the last ones, for `dump_flight`.
        """
        writer = self._writer
        try:
            if writer.closed:
                writer.fail(1, "a frame came after the record was closed")
            else:
                writer.added(writer.intake.put(frame, keep))
        except Exception as error:
            writer.fail(1, error)

    def event(self, event: Mapping[str, Any]) -> None:
        """Record an event; adds "time" (unix seconds) where it is missing. Never raises.

        Args:
            event: has a "kind"; any values, which become strict JSON.
        """
        writer = self._writer
        try:
            if writer.closed:
                writer.fail(1, "an event came after the record was closed")
                return
            entry = dict(event)
            entry.setdefault("time", time.time())
            writer.added(writer.intake.event(str(entry.get("kind", "")), dumps(entry).encode() + b"\n"))
        except Exception as error:
            writer.fail(1, error)

    def put_module_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Record the module statistics of one step: mappings with the columns of `schema.MODULES`. Never raises."""
        writer = self._writer
        try:
            if not writer.closed:
                writer.added(writer.intake.modules(rows))
        except Exception as error:
            writer.fail(1, error)

    def dump_flight(self) -> None:
        """Something went wrong: write the tensor tables that are held and not yet written, and never thin them."""
        writer = self._writer
        try:
            writer.intake.dump()
            writer.wake()
        except Exception as error:
            writer.fail(1, error)

    def protect(self, step: int) -> None:
        """Never thin what lies within 50 steps of `step`, for as long as half the budget is left to others."""
        writer = self._writer
        try:
            writer.intake.protect(int(step))
            writer.wake()
        except Exception as error:
            writer.fail(0, error)

    def flush(self, timeout: float | None = 10.0) -> bool:
        """Write all that was put so far; return whether that was done within `timeout` seconds (None: no limit)."""
        return self._writer.flush(timeout)

    def close(self, reason: str = "finished") -> None:
        """Write what waits and an event of kind "end", then stop. Idempotent; also called when the interpreter exits.

        Waits at most 30 s for the file system.
        """
        self._finalizer.detach()
        self._writer.close(reason)

    def _open_writer(self, lazy_end: bool) -> None:
        self._writer = Writer(self._store, process=new_process_id(), lazy_end=lazy_end, **self._settings)
        # The writer knows nothing of the recorder, so that dropping the recorder ends the record too.
        self._finalizer = weakref.finalize(self, Writer.close, self._writer, "interpreter exit")

    def _write_meta(self, meta: Mapping[str, Any], rank: int) -> None:
        place = {"rank": rank, "process": self.process, "attempt": self._trained_before(rank)}
        entry = {**meta, "format": FORMAT_VERSION, **place, "created": time.time()}
        data = dumps(entry).encode() + b"\n"
        if not self._store.create(RUN_FILE, data):
            self._store.create(part_name("run", rank, self.process), data)

    def _trained_before(self, rank: int) -> int:
        """Return how many processes of this rank have steps in the record: that tells the order without a clock."""
        parts = [parse_name(name) for name in self._store.sizes()]
        return len({part.process for part in parts if part and (part.kind, part.rank) == ("steps", rank)})

    def _begin_again_in_child(self) -> None:
        """In a forked child: forget the parent's queue, locks and files; what is put from now on goes to new ones."""
        self._finalizer.detach()
        closed = self._writer.closed
        self._store.renew()
        self._run = None
        self._open_writer(lazy_end=True)
        self._writer.closed = closed


class Recorder(_Recorder):
    """Records a run into a folder.

    Args:
        folder: is created, with its parents; may exist if it holds no run.
        meta: what to say about the run in `run.json`: versions, model tree, optimizer configuration.
        rank: of this process, from 0.
        budget: bound on the folder's size (`parse_budget`).
        overwrite: remove the record that the folder holds, and only that; each rank removes what is its own.
        flight: number of frames with tensor tables that the flight recorder holds.
        join: write beside what the folder holds: child processes, a restart.
        world: number of ranks of the job; each writes files of its own beside those of the others.

    Raises:
        InputError: the folder holds a run (of this rank), is a file or cannot be written.

    Example:
        >>> from tempfile import mkdtemp
        >>> recorder = Recorder(mkdtemp(), meta={"script": "train.py"})
        >>> recorder.put(Frame(step=0, optimizer="adam", loss=2.5), keep=True)
        >>> recorder.run.series("loss")
        array([2.5])
        >>> recorder.close()
    """

    path: Path

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        meta: Mapping[str, Any],
        rank: int = 0,
        budget: str | int = "256MB",
        overwrite: bool = False,
        flight: int = 64,
        join: bool = False,
        world: int = 1,
    ) -> None:
        size = parse_budget(budget)
        self.path = Path(folder).absolute()
        try:
            prepare(self.path, overwrite=overwrite, join=join, rank=rank, world=world)
            super().__init__(FolderStore(self.path), meta, rank, size, flight)
        except OSError as error:
            raise InputError(
                f"cannot write the run folder {str(folder)!r}: {error.strerror or error}; choose a folder that can be "
                f"created and written"
            ) from error


class MemoryRecorder(_Recorder):
    """Records a run in memory, compressed and thinned like a folder.

    Args:
        meta: what to say about the run.
        budget: bound on the memory that the record takes.
        rank: of this process.
        flight: number of frames with tensor tables that the flight recorder holds.
    """

    path: None

    def __init__(
        self, *, meta: Mapping[str, Any], budget: str | int = "256MB", rank: int = 0, flight: int = 64
    ) -> None:
        super().__init__(MemoryStore(), meta, rank, parse_budget(budget), flight)


def writes_into(folder: Path) -> bool:
    """Whether a recorder of this process that is not closed writes into a folder."""
    place = folder.resolve()
    return any(
        each.path is not None and not each._writer.closed and each.path.resolve() == place for each in list(_live)
    )


def _watch_forks(recorder: _Recorder) -> None:
    global _fork_handler_installed
    _live.add(recorder)
    if not _fork_handler_installed and hasattr(os, "register_at_fork"):
        _fork_handler_installed = True
        os.register_at_fork(after_in_child=_begin_again_in_child)


def _begin_again_in_child() -> None:
    for recorder in list(_live):
        recorder._begin_again_in_child()
