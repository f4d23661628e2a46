"""The first and the latest tensor tables of a run that grows, read as bytes come and never twice.

Reading the whole table anew each second would cost a core for a model of a thousand tensors; what a screen shows are
some two hundred steps at the end, and what they are held against, some at the beginning.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa

from gradmedic.frame import SEEN
from gradmedic.record.arrays import Array, as_floats, codes_of, starts_of_groups, to_numpy
from gradmedic.record.layout import parse_name
from gradmedic.record.store import FolderStore
from gradmedic.record.stream import decode

#: So many tables are kept of the beginning and of the end, for each optimizer.
FIRST, LATEST = 64, 192
#: Enough for the first tables of any model.
_HEAD_BYTES = 4 << 20
_MARK_BYTES = 4096
#: Segments that are read at the beginning; the last one may have begun just now.
_SEGMENTS = 2
#: Segments that may still bring new steps; older ones change only by being thinned.
_CHANGING = 3


@dataclass(frozen=True, slots=True)
class Table:
    """One step's tensors: `places` [N] in the names, then norm, update ratio, zero share, bad elements, status [N]."""

    step: int
    places: Array
    norm: Array
    ratio: Array
    zeros: Array
    bad: Array
    status: Array


@dataclass(slots=True)
class Tables:
    """What is kept of one optimizer.

    Attributes:
        names: tensors, in order of appearance.
        first, latest: tables, oldest first; no table is in both.
        step: the latest one.
    """

    names: dict[str, int] = field(default_factory=dict)
    first: list[Table] = field(default_factory=list)
    latest: deque[Table] = field(default_factory=lambda: deque(maxlen=LATEST))
    step: int = -1
    weights: Array = field(default_factory=lambda: np.zeros(0))

    def matrix(self, column: str) -> Array:
        """Return one column [S, P] of the first and then the latest tables; NaN where a tensor was not in one."""
        tables = [*self.first, *self.latest]
        made = np.full((len(tables), len(self.names)), np.nan)
        for row, table in zip(made, tables, strict=True):
            row[table.places] = getattr(table, column)
        return made


@dataclass(slots=True)
class _Place:
    mark: bytes = b""
    header: bytes = b""
    position: int = 0
    size: int = -1


class RecentTables:
    """Keeps up with the tensor tables of one process.

    Args:
        store: the run folder.
        rank, process: which process.

    Attributes:
        tables: by optimizer.
    """

    def __init__(self, store: FolderStore, rank: int, process: str) -> None:
        self.rank, self.process = rank, process
        self.tables: dict[str, Tables] = {}
        self._store = store
        self._places: dict[str, _Place] = {}
        self._codes: dict[tuple[str, bytes], Array] = {}
        self._opened = False

    def poll(self) -> bool:
        """Read what is new; return whether anything was. Raises OSError."""
        sizes = self._store.sizes()
        mine = [name for name in sizes if self._is_mine(name)]
        if not mine:
            return False
        if not self._opened:
            self._opened = True
            for name in mine[:-_SEGMENTS]:
                self._places[name] = _Place(size=sizes[name], position=sizes[name])
            if len(mine) > _SEGMENTS:
                self._take(decode(self._store.read(mine[0], 0, _HEAD_BYTES)).batches)
        changed = False
        for at, name in enumerate(mine):
            if name in self._places and at < len(mine) - _CHANGING:
                continue
            place = self._places.setdefault(name, _Place())
            if place.size != sizes[name]:
                changed |= self._read(name, place)
                place.size = sizes[name]
        return changed

    def _is_mine(self, name: str) -> bool:
        parts = parse_name(name)
        return parts is not None and (parts.kind, parts.rank, parts.process) == ("tensors", self.rank, self.process)

    def _read(self, name: str, place: _Place) -> bool:
        try:
            mark = self._store.read(name, 0, _MARK_BYTES)
            if (
                mark != place.mark or place.position < _MARK_BYTES
            ):  # new, or replaced: later steps may have come with it
                place.header, place.position, place.mark = b"", 0, mark
            decoded = decode(self._store.read(name, place.position), place.header)
        except FileNotFoundError:  # merged into another segment just now
            return False
        place.header = decoded.header
        place.position += decoded.position
        return self._take(decoded.batches)

    def _take(self, batches: list[pa.RecordBatch]) -> bool:
        taken = False
        for batch in batches:
            if {"step", "optimizer", "name", "norm"} <= set(batch.schema.names):
                taken |= self._take_batch(pa.Table.from_batches([batch]))
        return taken

    def _take_batch(self, rows: pa.Table) -> bool:
        owners, optimizers = codes_of(rows["optimizer"])
        codes, dictionary = codes_of(rows["name"])
        steps = to_numpy(rows["step"])
        columns = {name: _floats(rows, name) for name in _COLUMNS}
        taken = False
        edges = [*starts_of_groups(owners, steps).tolist(), len(steps)]
        for start, stop in pairwise(edges):
            optimizer, step = optimizers[owners[start]], int(steps[start])
            kept = self.tables.setdefault(optimizer, Tables())
            if step <= kept.step:  # thinned, or merged, and known already
                continue
            places = self._names_at(optimizer, kept, codes[start:stop], dictionary)
            table = _table(step, places, {name: values[start:stop] for name, values in columns.items()}, kept)
            (kept.first if len(kept.first) < FIRST else kept.latest).append(table)
            kept.step = step
            taken = True
        return taken

    def _names_at(self, optimizer: str, kept: Tables, codes: Array, dictionary: list[str]) -> Array:
        names = [dictionary[code] for code in codes.tolist()]
        key = optimizer, "\0".join(names).encode("utf-8", "surrogatepass")
        if key not in self._codes:
            if len(self._codes) > 64:  # a model whose parameters keep changing
                self._codes.clear()
            self._codes[key] = np.array(
                [kept.names.setdefault(name, len(kept.names)) for name in names], dtype=np.int64
            )
            grown = np.full(len(kept.names), np.nan)
            grown[: len(kept.weights)] = kept.weights
            kept.weights = grown
        return self._codes[key]


_COLUMNS = ("norm", "update_norm", "weight_norm", "zero_count", "numel", "nan_count", "inf_count", "status")


def _floats(rows: pa.Table, name: str) -> Array:
    return as_floats(rows[name]) if name in rows.schema.names else np.full(rows.num_rows, np.nan)


def _table(step: int, places: Array, columns: dict[str, Array], kept: Tables) -> Table:
    status = np.nan_to_num(columns["status"])
    seen = status == SEEN
    bad = np.nan_to_num(columns["nan_count"]) + np.nan_to_num(columns["inf_count"])
    weight = columns["weight_norm"]
    measured = np.isfinite(weight)
    kept.weights[places[measured]] = weight[measured]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(kept.weights[places] > 0, columns["update_norm"] / kept.weights[places], np.nan)
        zeros = np.where(columns["numel"] > 0, columns["zero_count"] / columns["numel"], np.nan)
    norm = np.where(bad > 0, np.inf, columns["norm"])
    return Table(
        step,
        places,
        np.where(seen, norm, np.nan),
        ratio,
        np.where(seen, zeros, np.nan),
        np.where(seen, bad, 0.0),
        status,
    )
