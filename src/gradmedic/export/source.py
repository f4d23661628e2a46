"""The tables of a run in pieces: one segment of its record at a time, each row once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from gradmedic.errors import InputError
from gradmedic.record.arrays import Array, booleans, codes_of, starts_of_groups, to_numpy
from gradmedic.record.layout import PartName, parse_name
from gradmedic.record.narrowed import NarrowedStore, open_light
from gradmedic.record.run import Run, open_run
from gradmedic.record.segments import ordinals_of
from gradmedic.record.store import FolderStore

#: Bytes read so far, and of the whole.
Progress = Callable[[int, int], None]
_Process = tuple[int, str]
_ROUNDS = 3
_MARK_BYTES = 4096


class Source:
    """A run that is read in pieces.

    Args:
        run: an opened run, or a run folder.
        progress: called as the large tables are read.

    Attributes:
        run: the run; of a folder without its large tables.
        problems: what could not be read; complete once the tables have been gone through.

    Raises:
        InputError: there is no such folder, it holds no run, or nothing of it can be read.
    """

    def __init__(self, run: Run | Path, progress: Progress | None = None) -> None:
        self._whole = run if isinstance(run, Run) and run.path is None else None
        path = run.path if isinstance(run, Run) else run
        self._store = None if path is None else FolderStore(path.absolute())
        if path is None:
            assert self._whole is not None
            self.run = self._whole
        else:
            open_run(path) if not path.is_dir() else None
            self.run = open_light(path.absolute())
        self.problems = list(self.run.problems)
        if self.problems and not self.run.steps.num_rows and not self._names("tensors"):
            raise InputError(f"{path} holds no readable run: {self.problems[0]}")
        self._progress = progress
        self._done = 0

    @property
    def total_bytes(self) -> int:
        """Bytes of the tables that are read in pieces."""
        if self._store is None:
            return 0
        sizes = self._store.sizes()
        return sum(sizes[name] for kind in ("tensors", "modules") for name in self._names(kind))

    def tables(self, kind: str) -> Iterator[pa.Table]:
        """Yield the rows of one kind, in the order of ranks, processes and time.

        Args:
            kind: "steps", "tensors" or "modules".

        Yields:
            Tables with the columns of `Run.steps` and its kin; none at all when there are no rows.
        """
        if kind == "steps" or self._store is None:
            table = getattr(self.run, kind)
            if table.num_rows:
                yield table
            return
        read: dict[str, bytes] = {}
        seen: dict[_Process, set[tuple[str, int, int]]] = {}
        for _ in range(_ROUNDS):
            waiting = self._unread(kind, read)
            for name in waiting:
                yield from self._piece(kind, name, seen)
            # A run that is still written may have merged segments meanwhile.
            if not waiting:
                break

    def _unread(self, kind: str, read: dict[str, bytes]) -> list[str]:
        assert self._store is not None
        waiting = []
        for name in self._names(kind):
            try:
                mark = self._store.read(name, 0, _MARK_BYTES)
            except OSError:
                mark = b""
            if name not in read or (len(mark) == _MARK_BYTES and mark != read[name]):
                read[name] = mark
                waiting.append(name)
        return waiting

    def _piece(self, kind: str, name: str, seen: dict[_Process, set[tuple[str, int, int]]]) -> Iterator[pa.Table]:
        assert self._store is not None
        part = Run(NarrowedStore(self._store.folder, lambda other: other == name), self._store.folder)
        self.problems += [text for text in part.problems if text.startswith(name)]
        table = getattr(part, kind)
        key = _key_of(name)
        table = _without_seen(table, seen.setdefault((key.rank, key.process), set()))
        if table.num_rows:
            yield table
        if self._progress is not None:
            self._done += self._store.sizes().get(name, 0)
            self._progress(self._done, max(self._done, self.total_bytes))

    def _names(self, kind: str) -> list[str]:
        """Return the files of one kind by rank, process in the order in which they began, and segment."""
        if self._store is None:
            return []
        begun = self._begun()
        found = [(parse_name(name), name) for name in self._store.sizes()]
        mine = [(parts, name) for parts, name in found if parts is not None and parts.kind == kind]
        last = len(begun)
        mine.sort(key=lambda item: (item[0].rank, begun.get((item[0].rank, item[0].process), last), item[0]))
        return [name for _, name in mine]

    def _begun(self) -> dict[_Process, int]:
        steps = self.run.steps
        codes, names = codes_of(steps["process"])
        ranks = to_numpy(steps["rank"])
        starts = starts_of_groups(ranks, codes)
        order = dict.fromkeys((int(ranks[at]), names[codes[at]]) for at in starts)
        return {key: at for at, key in enumerate(order)}


def _key_of(name: str) -> PartName:
    parts = parse_name(name)
    assert parts is not None
    return parts


def _without_seen(table: pa.Table, seen: set[tuple[str, int, int]]) -> pa.Table:
    """Leave out the groups of rows that an earlier segment had; remember the others."""
    codes, names = codes_of(table["optimizer"])
    steps, ordinals = to_numpy(table["step"]), ordinals_of(table)
    starts = starts_of_groups(codes, steps, ordinals)
    keys = [(names[codes[at]], int(steps[at]), int(ordinals[at])) for at in starts]
    fresh: Array = np.array([key not in seen for key in keys], dtype=bool)
    seen.update(keys)
    if fresh.all():
        return table
    return table.filter(booleans(np.repeat(fresh, np.diff([*starts, table.num_rows]))))
