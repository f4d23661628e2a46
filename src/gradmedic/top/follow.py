"""Follows one run folder, from before it exists to after it has gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gradmedic.diagnosis.finding import Finding
from gradmedic.errors import InputError
from gradmedic.record.narrowed import open_light
from gradmedic.record.run import Run
from gradmedic.record.store import FolderStore
from gradmedic.report.switched_off import Trouble, troubles_of
from gradmedic.report.views.order import TensorRow, tensor_rows
from gradmedic.report.views.scalars import Scalars, scalars_of
from gradmedic.report.views.source import Source
from gradmedic.top.layers import Layers, layers_of
from gradmedic.top.newer import Neighbours, newest_run
from gradmedic.top.process import is_gone, process_that_trains, step_counts, steps_by_rank
from gradmedic.top.recent import RecentTables

State = Literal["waiting", "running", "silent", "killed", "ended", "gone"]

#: A run is silent when nothing has come for so many seconds, and for so many of its usual steps.
_SILENT_SECONDS, _SILENT_STEPS = 10.0, 5.0
#: Seconds between two looks for runs that begin beside this one; and for which a change of run is told.
_NEIGHBOURS_SECONDS, _TOLD_SECONDS = 3.0, 20.0
#: Ranks write at most so many steps apart; those of a run that goes on may be as far apart without any trouble.
_APART = 128


@dataclass(slots=True)
class Snapshot:
    """What is known of a run at one moment.

    Attributes:
        name, path: of the run; `path` is what was asked for while there is none.
        state: "waiting" (there is no run yet), "running", "silent" (nothing has come for `silent` seconds), "killed"
            (its process is gone and said no end), "ended" (for `reason`), "gone" (the folder has vanished).
        others: how many older runs lie beside it in the folder that was asked for.
        newer: name of a run that has begun beside it since; "" for none.
        instead_of: name of the run that was shown until a moment ago, for which this one was taken; "" for none.
        parted: ranks whose numbers of steps differ by more than what has not been written yet, by rank; {} else.
        scalars: by optimizer.
        layers: the tensors.
        findings: folded, most likely root cause first.
        problems: what could not be read.
        troubles: what went wrong in the recording itself, such as a part that was switched off.
    """

    name: str
    path: Path
    state: State = "waiting"
    silent: float = 0.0
    reason: str = ""
    others: int = 0
    newer: str = ""
    instead_of: str = ""
    parted: dict[int, int] = field(default_factory=dict)
    scalars: dict[str, Scalars] = field(default_factory=dict)
    layers: Layers = field(default_factory=Layers)
    findings: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)


class Follower:
    """Reads what is new of a run.

    Where the folder that was asked for holds runs, one that begins there later is taken as soon as the one that is
    shown has ended; until then, and beside a run that was asked for by its own name, it is only told of.

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
        self._neighbours: Neighbours | None = None
        self._place: Path | None = None
        self._next_look = self._told_until = 0.0
        self._forget()

    def poll(self) -> Snapshot:
        """Read what is new, and return what is known now."""
        self._poll()
        if self._run is not None:
            self._look_around()
        return self.snapshot

    def take_newer(self) -> bool:
        """Go on with the run that has begun beside this one; return whether there is one."""
        newer = self._neighbours.newest if self._neighbours is not None else None
        if newer is None or newer == self.snapshot.path:
            return False
        before = self.snapshot.name
        self._forget()
        self._place = newer
        self._told_until = self._clock() + _TOLD_SECONDS
        self._poll()
        self.snapshot.instead_of = before
        return True

    def _poll(self) -> Snapshot:
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
            return self._poll()
        changed = self._follow_tables()
        if changed or _extent(self._run) != seen or self._source is None:
            self._heard, self._lag = (self._clock(), 0.0) if self._source is not None else (self._clock(), self._age())
            self._read()
        self._set_state()
        return self.snapshot

    def _look_around(self) -> None:
        """Look for a run that has begun beside this one, and take it where this one is over."""
        now, shown = self._clock(), self.snapshot
        if now > self._told_until:
            shown.instead_of = ""
        if now < self._next_look:
            return
        self._next_look = now + _NEIGHBOURS_SECONDS
        if self._neighbours is None:
            self._neighbours = Neighbours(shown.path.parent)
            return
        newer = self._neighbours.look()
        if newer is None or newer == shown.path:
            return
        shown.newer = newer.name
        if shown.path != self.asked and shown.state in ("ended", "killed", "gone"):
            self.take_newer()

    def _forget(self) -> None:
        self._run: Run | None = None
        self._recent: RecentTables | None = None
        self._rows: list[TensorRow] = []
        self._source: Source | None = None
        self._events = -1
        self._place = None
        self._counts: dict[tuple[int, str], int] = {}
        self._process: tuple[int, str] | None = None
        self._heard = self._clock()
        self._lag = 0.0
        self.snapshot = Snapshot(self.asked.name or str(self.asked), self.asked)

    def judged(self) -> None:
        """Take up findings that were made meanwhile."""
        if self._run is not None:
            self._read_layers()

    def _open(self) -> bool:
        found, others = newest_run(self.asked if self._place is None else self._place)
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
        counts, followed = step_counts(self._run), self._process
        self._process = process_that_trains(counts, self._counts, self._run, followed[1] if followed else None)
        self._counts = counts
        if self._process is None:
            return False
        rank, process = self._process
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
        self.snapshot.troubles = troubles_of(self._source.events)
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
        ends = self._run.ends
        end = ends.get(self._process) if self._process is not None else next(iter(ends.values()), None)
        made = steps_by_rank(self._counts, self._run)
        apart = max(made.values(), default=0) - min(made.values(), default=0)
        if end is not None:
            snapshot.state, snapshot.reason = "ended", str(end.get("reason") or "")
            snapshot.parted = made if apart else {}
            return
        snapshot.parted = made if apart > _APART else {}
        usual = [each.columns["step_seconds"][-1] for each in snapshot.scalars.values() if len(each.steps)]
        patience = max(_SILENT_SECONDS, _SILENT_STEPS * max((s for s in usual if s == s and s < 1e6), default=0.0))
        if snapshot.silent <= patience:
            snapshot.state = "running"
        else:
            gone = self._process is not None and is_gone(self._run, self._process[1])
            snapshot.state = "killed" if gone else "silent"

    def _age(self) -> float:
        """Seconds since the last sign of the run when it was opened, as far as the clocks of two machines agree."""
        assert self._run is not None
        assert self._run.path is not None
        try:
            written = max(entry.stat().st_mtime for entry in os.scandir(self._run.path))
        except (OSError, ValueError):
            return 0.0
        return max(0.0, self._wall() - written)


def _extent(run: Run) -> tuple[int, int, int]:
    """What grows when something is written: steps, events, and when the last of them was."""
    return run.steps.num_rows, len(run.events), len(run.problems)
