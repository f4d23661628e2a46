"""Rows back to frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from gradmedic.frame import TENSOR_COLUMNS, Frame, TensorTable
from gradmedic.record.arrays import Array, codes_of, starts_of_groups, to_numpy, valid_of
from gradmedic.record.schema import STEPS
from gradmedic.record.segments import ordinals_of
from gradmedic.types import HISTOGRAM_BINS

_ROWS_AT_ONCE = 1024
_FRAME_COLUMNS = [name for name in STEPS.names if name != "ordinal"]


def frames_of(
    steps: pa.Table, tensors: pa.Table | None, start: int, modules: pa.Table | None = None
) -> Iterator[Frame]:
    """Yield the frames of one process in the order of time, from step `start` on.

    Args:
        steps, tensors: rows of one process; `tensors` None where it recorded none.
        start: first step index of any optimizer.
        modules: module rows of the same process, None where it recorded none.
    """
    probed = _module_rows(modules) if modules is not None else {}
    tables = TableReader(tensors) if tensors is not None else None
    for at in range(0, steps.num_rows, _ROWS_AT_ONCE):
        piece = steps.slice(at, _ROWS_AT_ONCE)
        columns = [piece[name].to_pylist() for name in _FRAME_COLUMNS]
        for row in zip(*columns, strict=True):
            values = dict(zip(_FRAME_COLUMNS, row, strict=True))
            table = tables.take(values["optimizer"], values["step"]) if tables is not None else None
            if values["step"] >= start:
                frame = _frame(values, table)
                frame.modules = tuple(probed.get((frame.optimizer, frame.step), ()))
                yield frame


def _frame(values: dict[str, Any], table: TensorTable | None) -> Frame:
    values["lrs"] = None if values["lrs"] is None else tuple(values["lrs"])
    values["logged"] = None if values["logged"] is None else dict(values["logged"])
    return Frame(**values, tensors=TensorTable() if table is None else table)


def _module_rows(modules: pa.Table) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Return the module rows by optimizer and step; numbers that were not measured are left out."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in modules.to_pylist():
        key = (str(row.pop("optimizer")), int(row.pop("step")))
        for other in ("ordinal", "rank", "process"):
            row.pop(other, None)
        extra = dict(row.pop("extra", None) or ())
        kept = {name: value for name, value in row.items() if value is not None}
        found.setdefault(key, []).append({**kept, "extra": extra})
    return found


class TableReader:
    """Cuts the tensor rows of one process into the tables of its steps."""

    def __init__(self, rows: pa.Table) -> None:
        rows = rows.combine_chunks()
        codes, self._dictionary = codes_of(rows["name"])
        self._codes = codes
        self._columns: dict[str, tuple[Array, Array | None]] = {}
        for name in TENSOR_COLUMNS:
            if rows[name].null_count < rows.num_rows:
                self._columns[name] = (to_numpy(rows[name]), valid_of(rows[name]))
        self._histograms = _Histograms(rows["log2_hist"])
        self._names: dict[bytes, tuple[str, ...]] = {}
        self._blocks = _blocks(rows)

    def take(self, optimizer: str, step: int) -> TensorTable | None:
        """Return the next table of that optimizer's step, None where none is left."""
        blocks = self._blocks.get((optimizer, step))
        if not blocks:
            return None
        start, stop = blocks.popleft()
        columns = {}
        for name, (values, valid) in self._columns.items():
            column = _present(values[start:stop], None if valid is None else valid[start:stop])
            if column is not None:
                columns[name] = column
        return TensorTable(self._names_of(start, stop), columns, self._histograms.take(start, stop))

    def _names_of(self, start: int, stop: int) -> tuple[str, ...]:
        codes = self._codes[start:stop]
        key = codes.tobytes()
        if key not in self._names:
            self._names[key] = tuple(self._dictionary[code] for code in codes)
        return self._names[key]


class _Histograms:
    def __init__(self, column: pa.ChunkedArray) -> None:
        self._values: Array | None = None
        if column.null_count == len(column):
            return
        lists = column.combine_chunks()
        lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
        self._offsets = to_numpy(lists.offsets)
        self._valid = valid_of(lists)
        self._values = to_numpy(lists.values)

    def take(self, start: int, stop: int) -> Array | None:
        if self._values is None or (self._valid is not None and not self._valid[start]):
            return None
        found: Array = self._values[self._offsets[start] : self._offsets[stop]].reshape(-1, HISTOGRAM_BINS)
        return found


def _present(values: Array, valid: Array | None) -> Array | None:
    """A column of a table: None where it was not measured, float64 with NaN where only some rows have it."""
    if valid is None or bool(valid.all()):
        return values
    if not valid.any():
        return None
    return np.where(valid, values, np.nan)


def _blocks(rows: pa.Table) -> dict[tuple[str, int], deque[tuple[int, int]]]:
    """Find which rows belong to which step: each table was written in one piece."""
    if not rows.num_rows:
        return {}
    codes, optimizers = codes_of(rows["optimizer"])
    steps, ordinals = to_numpy(rows["step"]), ordinals_of(rows)
    edges = [*starts_of_groups(steps, codes, ordinals).tolist(), rows.num_rows]
    found: dict[tuple[str, int], deque[tuple[int, int]]] = {}
    for start, stop in pairwise(edges):
        found.setdefault((optimizers[codes[start]], int(steps[start])), deque()).append((start, stop))
    return found
