"""Reads the files of a record and keeps up with them as they grow; what cannot be read costs only itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from gradmedic.record.arrays import TEXT, booleans, codes_of, constant, starts_of_groups, text_column, texts, to_numpy
from gradmedic.record.layout import RUN_FILE, PartName, parse_name
from gradmedic.record.ordering import in_order
from gradmedic.record.schema import SCHEMAS
from gradmedic.record.segments import ordinals_of
from gradmedic.record.store import Store
from gradmedic.record.stream import decode
from gradmedic.record.strict_json import loads

#: Long enough to hold the random mark of a stream.
_START = 4096
_ATTEMPTS = 3


@dataclass(slots=True)
class _Part:
    """What was read of one file."""

    size: int = -1
    start: bytes = b""
    header: bytes = b""
    position: int = 0
    batches: list[pa.RecordBatch] = field(default_factory=list)
    entries: list[Any] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Parts:
    """All files of one record.

    Args:
        store: where they lie.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._parts: dict[str, _Part] = {}
        self._problem: str | None = None

    def refresh(self) -> bool:
        """Read what is new; return whether anything was."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._refresh(final=attempt == _ATTEMPTS - 1)
            except FileNotFoundError:  # merged into another file between listing and reading
                continue
        return True

    def problems(self) -> list[str]:
        """Return one sentence for each thing that could not be read."""
        found = [f"{name}: {problem}" for name, part in self._parts.items() for problem in part.problems]
        if not any(name.endswith(".json") for name in self._parts):
            found.insert(0, f"{RUN_FILE} is missing: what was known of the run beside its numbers is lost")
        return [self._problem, *found] if self._problem else found

    def metas(self) -> list[dict[str, Any]]:
        """Return the readable run files, run.json first."""
        names = sorted((name for name in self._parts if name.endswith(".json")), key=lambda name: name != RUN_FILE)
        return [entry for name in names for entry in self._parts[name].entries if isinstance(entry, dict)]

    def events(self) -> list[dict[str, Any]]:
        """Return the events of all processes in the order of time; those of further ranks say whose they are."""
        lines: list[dict[str, Any]] = []
        for name, part in self._parts.items():
            parts = parse_name(name)
            if parts is not None and parts.kind == "events":
                entries = [entry for entry in part.entries if isinstance(entry, dict)]
                lines += [{**entry, "rank": parts.rank} for entry in entries] if parts.rank else entries
        return sorted(lines, key=_time_of)

    def ends(self) -> dict[tuple[int, str], dict[str, Any]]:
        """Return the event by which each process, by (rank, process), said that it ends; none of those that did not."""
        found: dict[tuple[int, str], dict[str, Any]] = {}
        for name, part in self._parts.items():
            parts = parse_name(name)
            if parts is not None and parts.kind == "events":
                said = [each for each in part.entries if isinstance(each, dict) and each.get("kind") == "end"]
                if said:
                    found[parts.rank, parts.process] = said[-1]
        return found

    def tables(self, kind: str) -> dict[tuple[int, str], pa.Table]:
        """Return the rows of one kind by (rank, process), in the order in which they were written."""
        found: dict[tuple[int, str], list[_Part]] = {}
        for parts, name in sorted((parse_name(name), name) for name in self._parts if _is_rows(name, kind)):
            assert parts is not None
            found.setdefault((parts.rank, parts.process), []).append(self._parts[name])
        return {key: _joined(group, kind, *key) for key, group in found.items()}

    def _refresh(self, final: bool) -> bool:
        self._problem = None
        try:
            sizes = self._store.sizes()
        except OSError as error:
            self._problem = f"the run folder can no longer be listed: {error.strerror or error}"
            return False
        names = {name: parse_name(name) for name in sizes if name == RUN_FILE or parse_name(name) is not None}
        changed = bool(self._parts.keys() - names.keys())
        for gone in self._parts.keys() - names.keys():
            del self._parts[gone]
        for name, parts in names.items():
            part = self._parts.setdefault(name, _Part())
            try:
                changed |= self._read(name, parts, part, sizes[name])
            except FileNotFoundError:
                del self._parts[name]
                if not final:
                    raise
            except OSError as error:
                part.problems = [f"could not be read: {error.strerror or error}"]
        return changed

    def _read(self, name: str, parts: PartName | None, part: _Part, size: int) -> bool:
        start = self._store.read(name, 0, _START)
        if part.size == size and part.start == start:
            return False
        if name.endswith(".arrows"):
            self._read_rows(name, part, start)
        elif name.endswith(".jsonl"):
            _read_lines(part, self._store.read(name))
        else:
            _read_meta(part, self._store.read(name))
        part.size, part.start = size, start
        return True

    def _read_rows(self, name: str, part: _Part, start: bytes) -> None:
        if part.position < _START or part.start != start:  # new, or replaced by a thinner one
            part.header, part.position, part.batches, part.problems = b"", 0, [], []
        base = part.position
        decoded = decode(self._store.read(name, base), part.header)
        part.batches = part.batches + decoded.batches
        part.header = decoded.header
        # What is torn may still be growing: it is looked at again, and said again, until it ends.
        part.problems = [text for text in part.problems if not text.startswith(_TORN)]
        for low, high in decoded.lost:
            where = _TORN if low >= decoded.position else "damaged"
            part.problems.append(f"{where}: {high - low} bytes from byte {base + low} on could not be read")
        part.position = base + decoded.position
        if not part.header:
            part.problems = ["empty, or not an Arrow stream"]


_TORN = "torn tail"


def _is_rows(name: str, kind: str) -> bool:
    parts = parse_name(name)
    return parts is not None and parts.kind == kind and name.endswith(".arrows")


def _read_lines(part: _Part, data: bytes) -> None:
    part.entries, part.problems = [], []
    broken = 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            part.entries.append(loads(line))
        except (ValueError, RecursionError):
            broken += 1
    if broken:
        part.problems.append(f"{broken} lines are no JSON (a torn tail, or damage)")
    if not data:
        part.problems.append("empty")


def _read_meta(part: _Part, data: bytes) -> None:
    try:
        part.entries, part.problems = [loads(data)], []
    except (ValueError, RecursionError):
        part.entries, part.problems = [], ["not JSON: what was known of the run beside its numbers is lost"]


def _time_of(event: dict[str, Any]) -> float:
    time = event.get("time")
    return float(time) if isinstance(time, (int, float)) and time == time else 0.0


def _joined(parts: list[_Part], kind: str, rank: int, process: str) -> pa.Table:
    tables = [_conform(part.batches, kind) for part in parts]
    table = pa.concat_tables(tables).unify_dictionaries()
    if len(tables) > 1:
        table = _without_repeats(table, [piece.num_rows for piece in tables])
    if kind == "steps":
        table = in_order(table)
    rows = table.num_rows
    ranks = constant(np.int16(rank), rows, pa.int16())
    processes = text_column(np.zeros(rows, dtype=np.int32), texts([process]))
    return table.add_column(0, "rank", ranks).add_column(1, pa.field("process", TEXT), processes)


def _conform(batches: Iterable[pa.RecordBatch], kind: str) -> pa.Table:
    """Give batches of an older or newer version the columns of this one."""
    schema = SCHEMAS[kind]
    out = []
    for batch in batches:
        columns = []
        for column in schema:
            at = batch.schema.get_field_index(column.name)
            same = at >= 0 and batch.schema.field(at).type == column.type
            columns.append(batch.column(at) if same else pa.nulls(batch.num_rows, column.type))
        out.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return pa.Table.from_batches(out, schema=schema)


def _without_repeats(table: pa.Table, lengths: list[int]) -> pa.Table:
    """Take rows that stand in two segments once; so it is between the two halves of a merge."""
    codes, optimizers = codes_of(table["optimizer"])
    keys = to_numpy(table["step"]) * max(1, len(optimizers)) + codes
    ordinals, segment = ordinals_of(table), np.repeat(np.arange(len(lengths)), lengths)
    starts = starts_of_groups(keys, ordinals, segment)
    groups = np.stack([keys[starts], ordinals[starts]], axis=1)
    _, first, inverse = np.unique(groups, axis=0, return_index=True, return_inverse=True)
    repeated = segment[starts] != segment[starts][first][inverse.reshape(-1)]
    if not repeated.any():
        return table
    return table.filter(booleans(np.repeat(~repeated, np.diff([*starts, table.num_rows]))))
