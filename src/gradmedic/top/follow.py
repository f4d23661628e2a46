"""Follows one run folder, from before it exists to after it has gone."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gradmedic.diagnosis.finding import Finding
from gradmedic.errors import InputError
from gradmedic.export.narrowed import open_light
from gradmedic.record.arrays import codes_of, to_numpy
from gradmedic.record.layout import is_record
from gradmedic.record.run import Run
from gradmedic.record.store import FolderStore
from gradmedic.report.views.order import TensorRow, tensor_rows
from gradmedic.report.views.scalars import Scalars, scalars_of
from gradmedic.report.views.source import Source
from gradmedic.top.layers import Layers, layers_of
from gradmedic.top.recent import RecentTables

State = Literal["waiting", "running", "silent", "killed", "ended", "gone"]

#: A run is silent when nothing has come for so many seconds, and for so many of its usual steps.
_SILENT_SECONDS, _SILENT_STEPS = 10.0, 5.0


@dataclass(slots=True)
class Snapshot:
    """What is known of a run at one moment.

    Attributes:
        name, path: of the run; `path` is what was asked for while there is none.
        state: "waiting" (there is no run yet), "running", "silent" (nothing has come for `silent` seconds), "killed"
            (its process is gone and said no end), "ended" (for `reason`), "gone" (the folder has vanished).
        others: how many older runs lie beside it in the folder that was asked for.
        scalars: by optimizer.
        layers: the tensors.
        findings: folded, most likely root cause first.
        problems: what could not be read.
    """

    name: str
    path: Path
    state: State = "waiting"
    silent: float = 0.0
    reason: str = ""
    others: int = 0
    scalars: dict[str, Scalars] = field(default_factory=dict)
    layers: Layers = field(default_factory=Layers)
    findings: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Follower:
    """Reads what is new of a run.

    Args:
        path: a run folder, one that will be there later, or one that holds run folders (the newest is taken).
        findings_of: what is found in a run, given it as it stands; called at each poll that brought something.
        clock, wall: seconds that only grow, and unix seconds.
    """

    snapshot: Snapshot

    def __init__(
        self,
        path: Path,
        findings_of: Callable[[Run], list[Finding]],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.asked = path
        self._findings_of, self._clock, self._wall = findings_of, clock, wall
        self._forget()

    def poll(self) -> Snapshot:
        """Read what is new, and return what is known now."""
        if self._run is None and not self._open():
            return self.snapshot
        assert self._run is not None
        seen = _extent(self._run)
        self._run.reload()
        if not self._run.path or not self._run.path.is_dir():
            self.snapshot.state = "gone"
            return self.snapshot
        if self.snapshot.state == "gone":
            self._forget()
            return self.poll()
        changed = self._follow_tables()
        if changed or _extent(self._run) != seen or self._source is None:
            self._heard, self._lag = (self._clock(), 0.0) if self._source is not None else (self._clock(), self._age())
            self._read()
        self._set_state()
        return self.snapshot

    def _forget(self) -> None:
        self._run: Run | None = None
        self._recent: RecentTables | None = None
        self._rows: list[TensorRow] = []
        self._source: Source | None = None
        self._events = -1
        self._heard = self._clock()
        self._lag = 0.0
        self.snapshot = Snapshot(self.asked.name or str(self.asked), self.asked)

    def judged(self) -> None:
        """Take up findings that were made meanwhile."""
        if self._run is not None:
            self._read_layers()

    def _open(self) -> bool:
        found, others = newest_run(self.asked)
        if found is None:
            return False
        try:
            self._run = open_light(found)
        except InputError:
            return False
        self.snapshot = Snapshot(found.name, found, "running", others=others)
        return True

    def _follow_tables(self) -> bool:
        """Read the tables of the process that trains now: the last one of the lowest rank."""
        assert self._run is not None
        assert self._run.path is not None
        steps = self._run.steps
        if not steps.num_rows:
            return False
        ranks = to_numpy(steps["rank"])
        rank = int(ranks.min())
        codes, names = codes_of(steps["process"])
        process = names[codes[ranks == rank][-1]]
        if self._recent is None or (self._recent.rank, self._recent.process) != (rank, process):
            self._recent = RecentTables(FolderStore(self._run.path), rank, process)
        try:
            return self._recent.poll()
        except OSError:
            return False

    def _read(self) -> None:
        assert self._run is not None
        self._source = Source(self._run)
        self.snapshot.scalars = scalars_of(self._source)
        self.snapshot.problems = self._run.problems
        events = len(self._source.events)
        if events != self._events:
            self._events = events
            self._rows = tensor_rows(self._source)
        self._read_layers()

    def _read_layers(self) -> None:
        assert self._run is not None
        assert self._source is not None
        self.snapshot.findings = self._findings_of(self._run)
        facts = self._source.facts.parameters if self._source.facts is not None else {}
        tables = self._recent.tables if self._recent is not None else {}
        skipped = {name: each.steps[each.skipped].tolist() for name, each in self.snapshot.scalars.items()}
        self.snapshot.layers = layers_of(self._rows, facts, tables, skipped, self.snapshot.findings)
        self._rows = self.snapshot.layers.rows  # with their states, of which few will change

    def _set_state(self) -> None:
        assert self._run is not None
        snapshot = self.snapshot
        snapshot.silent = self._clock() - self._heard + self._lag
        ends = [event for event in self._run.events if event.get("kind") == "end"]
        last = max((float(each.time[-1]) for each in snapshot.scalars.values() if len(each.time)), default=0.0)
        if ends and _time(ends[-1].get("time")) >= last:
            snapshot.state, snapshot.reason = "ended", str(ends[-1].get("reason") or "")
            return
        usual = [each.columns["step_seconds"][-1] for each in snapshot.scalars.values() if len(each.steps)]
        patience = max(_SILENT_SECONDS, _SILENT_STEPS * max((s for s in usual if s == s and s < 1e6), default=0.0))
        if snapshot.silent <= patience:
            snapshot.state = "running"
        else:
            snapshot.state = "killed" if self._process_is_gone() else "silent"

    def _age(self) -> float:
        """Seconds since the last sign of the run when it was opened, as far as the clocks of two machines agree."""
        assert self._run is not None
        assert self._run.path is not None
        try:
            written = max(entry.stat().st_mtime for entry in os.scandir(self._run.path))
        except (OSError, ValueError):
            return 0.0
        return max(0.0, self._wall() - written)

    def _process_is_gone(self) -> bool:
        """Whether the process that trained was on this machine and is there no more."""
        assert self._run is not None
        if self._recent is None or self._run.meta.get("host") != socket.gethostname():
            return False
        try:
            os.kill(int(self._recent.process.partition("x")[0], 16), 0)
        except ProcessLookupError:
            return True
        except (OSError, ValueError, OverflowError):
            return False
        return False


def newest_run(folder: Path) -> tuple[Path | None, int]:
    """Return (the run folder, how many others lie beside it): the folder itself, or the newest run within it."""
    if _holds_run(folder):
        return folder, 0
    try:
        inside = [entry for entry in folder.iterdir() if entry.is_dir() and _holds_run(entry)]
    except OSError:
        return None, 0
    newest = max(inside, key=_last_change, default=None)
    return newest, max(0, len(inside) - 1)


def _holds_run(folder: Path) -> bool:
    try:
        return any(is_record(entry.name) and not entry.name.startswith(".") for entry in folder.iterdir())
    except OSError:
        return False


def _last_change(folder: Path) -> float:
    try:
        return max(entry.stat().st_mtime for entry in folder.iterdir())
    except (OSError, ValueError):
        return 0.0


def _extent(run: Run) -> tuple[int, int, int]:
    """What grows when something is written: steps, events, and when the last of them was."""
    return run.steps.num_rows, len(run.events), len(run.problems)


def _time(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
