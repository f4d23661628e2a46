"""How frames become rows: the record batches of one process.

Columns of one kind are made together. A flush brings a few rows to some fifty columns, so that what a column costs by
itself is most of what a flush costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from gradmedic.frame import Frame
from gradmedic.record.arrays import TEXT, Array, Vocabulary, booleans, cut, lists, numbers, texts
from gradmedic.record.schema import LOGGED, MODULES, REALS, STEPS, TENSORS
from gradmedic.record.tensor_columns import tensor_columns


class _Layout:
    """A schema, as it is needed to make batches."""

    def __init__(self, schema: pa.Schema) -> None:
        self.names = tuple(schema.names)
        self._row = pa.struct(list(schema))
        self.kinds: dict[pa.DataType, list[str]] = {}
        for field in schema:
            self.kinds.setdefault(field.type, []).append(field.name)

    def batch(self, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Return a batch of columns, by way of structs: `RecordBatch.from_arrays` takes twice the time."""
        children = [columns[name] for name in self.names]
        rows = pa.Array.from_buffers(self._row, len(children[0]), [None], children=children)
        return pa.RecordBatch.from_struct_array(rows)


_STEPS, _TENSORS, _MODULES = _Layout(STEPS), _Layout(TENSORS), _Layout(MODULES)
_STEP_NAMES = tuple(name for name in _STEPS.names if name != "ordinal")
_step_values = attrgetter(*_STEP_NAMES)


class RowBuilder:
    """Makes the record batches of one process; remembers the texts it has met, one vocabulary a column."""

    def __init__(self) -> None:
        self._vocabularies: dict[tuple[str, str], Vocabulary] = {}

    def steps(self, rows: Sequence[tuple[Frame, int]]) -> pa.RecordBatch:
        """Return the scalars of (frame, ordinal) pairs, one row each."""
        by_column = zip(*(_step_values(frame) for frame, _ in rows), strict=True)
        cells: dict[str, Sequence[Any]] = dict(zip(_STEP_NAMES, by_column, strict=True))
        cells["ordinal"] = _ordinals(rows)
        return self._batch("steps", _STEPS, cells)

    def tensors(self, rows: Sequence[tuple[Frame, int]]) -> pa.RecordBatch:
        """Return the tensor tables of (frame, ordinal) pairs, one row for each tensor of each frame."""
        tables = [frame.tensors for frame, _ in rows]
        lengths = [len(table.names) for table in tables]
        names, optimizers = self._vocabulary("tensors", "name"), self._vocabulary("tensors", "optimizer")
        optimizer_codes = optimizers.code_of_each(frame.optimizer for frame, _ in rows)
        columns = tensor_columns(tables, lengths)
        columns["optimizer"] = optimizers.column(np.repeat(optimizer_codes, lengths))
        columns["name"] = names.column(np.concatenate([names.codes(table.names) for table in tables]))
        numbered = np.array([*(frame.step for frame, _ in rows), *(ordinal for _, ordinal in rows)], dtype=np.int64)
        numbered = np.repeat(numbered, lengths * 2)
        valid = numbered >= 0
        valid[: len(valid) // 2] = True
        columns["step"], columns["ordinal"] = cut(numbers(numbered, pa.int64(), valid), 2)
        return _TENSORS.batch(columns)

    def modules(self, rows: Sequence[tuple[Mapping[str, Any], int]]) -> pa.RecordBatch:
        """Return module rows, given as (mapping, ordinal) pairs; keys that are no column are left out."""
        cells: dict[str, Sequence[Any]] = {name: [row.get(name) for row, _ in rows] for name in _MODULES.names}
        cells["ordinal"] = _ordinals(rows)
        return self._batch("modules", _MODULES, cells)

    def _batch(self, table: str, layout: _Layout, cells: Mapping[str, Sequence[Any]]) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        for kind, names in layout.kinds.items():
            if kind == TEXT:
                columns.update((name, self._texts(table, name, cells[name])) for name in names)
            else:
                joined = _MAKERS[kind]([value for name in names for value in cells[name]])
                columns.update(zip(names, cut(joined, len(names)), strict=True))
        return layout.batch(columns)

    def _vocabulary(self, kind: str, column: str) -> Vocabulary:
        return self._vocabularies.setdefault((kind, column), Vocabulary())

    def _texts(self, kind: str, column: str, values: Sequence[Any]) -> pa.Array:
        vocabulary = self._vocabulary(kind, column)
        return vocabulary.column(vocabulary.code_of_each("" if value is None else str(value) for value in values))


def _ordinals(rows: Sequence[tuple[Any, int]]) -> list[int | None]:
    return [None if ordinal < 0 else ordinal for _, ordinal in rows]


def _floats(values: Sequence[Any]) -> pa.Array:
    data = np.array([math.nan if value is None else float(value) for value in values], dtype=np.float64)
    return numbers(data, pa.float64(), _there(values))


def _integers(values: Sequence[Any]) -> pa.Array:
    data = np.array([0 if value is None else int(value) for value in values], dtype=np.int64)
    return numbers(data, pa.int64(), _there(values))


def _booleans(values: Sequence[Any]) -> pa.Array:
    return booleans(np.array([bool(value) for value in values], dtype=bool), _there(values))


def _float_lists(values: Sequence[Any]) -> pa.Array:
    entries = _floats([entry for value in values for entry in value or ()])
    return lists([len(value or ()) for value in values], entries, REALS, _there(values))


def _logged(values: Sequence[Any]) -> pa.Array:
    pairs = [pair for value in values for pair in (value or {}).items()]
    lengths = [len(value or {}) for value in values]
    return lists(lengths, _entries(pairs) if pairs else _NO_ENTRIES, LOGGED, _there(values))


def _entries(pairs: Sequence[tuple[Any, Any]]) -> pa.Array:
    keys, logged = texts([str(key) for key, _ in pairs]), _floats([value for _, value in pairs])
    return pa.StructArray.from_arrays([keys, logged], fields=_ENTRY)


_ENTRY = [pa.field("key", pa.utf8(), nullable=False), pa.field("value", pa.float64())]
_NO_ENTRIES = pa.StructArray.from_arrays([pa.nulls(0, field.type) for field in _ENTRY], fields=_ENTRY)

_MAKERS: dict[Any, Callable[[Sequence[Any]], pa.Array]] = {
    pa.float64(): _floats,
    pa.int64(): _integers,
    pa.bool_(): _booleans,
    pa.utf8(): texts,
    REALS: _float_lists,
    LOGGED: _logged,
}


def _there(values: Sequence[Any]) -> Array | None:
    """Return which values are not None, bool [N]; None when all are there."""
    there = [value is not None for value in values]
    return None if all(there) else np.array(there, dtype=bool)
