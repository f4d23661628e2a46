"""The columns of a record, and how frames become rows. See docs/record.md for what each column means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gradmedic.frame import INTEGER_COLUMNS, TENSOR_COLUMNS, Frame, TensorTable
from gradmedic.record.arrays import TEXT, Array, Vocabulary, booleans, lists, numbers, texts
from gradmedic.types import COUNT_COLUMNS, HISTOGRAM_BINS, MOMENT_COLUMNS

#: Of the layout on file; it grows when a reader of an older version could misread a file.
FORMAT_VERSION = 1

_REAL = pa.list_(pa.float64())
_LOGGED = pa.map_(pa.utf8(), pa.float64())
_HISTOGRAM = pa.list_(pa.int64())

_STEP_TYPES: dict[str, Any] = {
    "step": pa.int64(),
    "optimizer": TEXT,
    "time": pa.float64(),
    "loss": pa.float64(),
    "lr": pa.float64(),
    "lrs": _REAL,
    "grad_norm": pa.float64(),
    "grad_norm_post": pa.float64(),
    "clip_scale": pa.float64(),
    "clip_threshold": pa.float64(),
    "clipped": pa.bool_(),
    "transform_scale": pa.float64(),
    "transform_threshold": pa.float64(),
    "clip_frequency": pa.float64(),
    "skipped": pa.bool_(),
    "skip_reason": pa.utf8(),
    "loss_scale": pa.float64(),
    "nonfinite": pa.int64(),
    "micro_batches": pa.int64(),
    "stale_grads": pa.bool_(),
    "step_seconds": pa.float64(),
    "overhead_seconds": pa.float64(),
    "logged": _LOGGED,
    "ordinal": pa.int64(),
}


def _tensor_type(column: str) -> Any:
    if column == "status":
        return pa.int8()
    return pa.int64() if column in INTEGER_COLUMNS else pa.float64()


STEPS = pa.schema(list(_STEP_TYPES.items()))
TENSORS = pa.schema(
    [
        ("step", pa.int64()),
        ("optimizer", TEXT),
        ("name", TEXT),
        *((column, _tensor_type(column)) for column in TENSOR_COLUMNS),
        ("log2_hist", _HISTOGRAM),
        ("ordinal", pa.int64()),
    ]
)
#: `what` is "output" or "grad_output"; `call` counts a module's calls within the step; `leaf` tells the tensors of one
#: output apart.
MODULES = pa.schema(
    [
        ("step", pa.int64()),
        ("optimizer", TEXT),
        ("module", TEXT),
        ("what", TEXT),
        ("call", pa.int64()),
        ("leaf", TEXT),
        *((column, _tensor_type(column)) for column in (*COUNT_COLUMNS, *MOMENT_COLUMNS)),
        ("rms", pa.float64()),
        ("saturated_frac", pa.float64()),
        ("units", pa.float64()),
        ("inactive_units", pa.float64()),
        ("batches", pa.float64()),
        ("extra", _LOGGED),
        ("ordinal", pa.int64()),
    ]
)
SCHEMAS: dict[str, pa.Schema] = {"steps": STEPS, "tensors": TENSORS, "modules": MODULES}

#: Bytes of one row before compression, to plan with.
ROW_BYTES = {"steps": 200, "tensors": 140, "modules": 120}


class RowBuilder:
    """Makes the record batches of one process; remembers the texts it has met, one vocabulary a column."""

    def __init__(self) -> None:
        self._vocabularies: dict[tuple[str, str], Vocabulary] = {}

    def steps(self, rows: Sequence[tuple[Frame, int]]) -> pa.RecordBatch:
        """Return the scalars of (frame, ordinal) pairs, one row each."""
        frames = [frame for frame, _ in rows]
        columns: list[pa.Array] = []
        for name, kind in _STEP_TYPES.items():
            if name == "ordinal":
                columns.append(_ordinals([ordinal for _, ordinal in rows]))
            elif kind == TEXT:
                columns.append(self._texts("steps", name, [getattr(frame, name) for frame in frames]))
            else:
                columns.append(_COLUMN_MAKERS[kind]([getattr(frame, name) for frame in frames]))
        return pa.RecordBatch.from_arrays(columns, schema=STEPS)

    def tensors(self, rows: Sequence[tuple[Frame, int]]) -> pa.RecordBatch:
        """Return the tensor tables of (frame, ordinal) pairs, one row for each tensor of each frame."""
        tables = [frame.tensors for frame, _ in rows]
        lengths = [len(table.names) for table in tables]
        names = self._vocabulary("tensors", "name")
        optimizers = self._vocabulary("tensors", "optimizer")
        optimizer_codes = [optimizers.codes((frame.optimizer,))[0] for frame, _ in rows]
        name_codes = [names.codes(table.names) for table in tables]
        steps = np.array([frame.step for frame, _ in rows], dtype=np.int64)
        columns = [
            numbers(np.repeat(steps, lengths), pa.int64()),
            optimizers.column(np.repeat(np.array(optimizer_codes, dtype=np.int32), lengths)),
            names.column(np.concatenate(name_codes)),
        ]
        for column in TENSOR_COLUMNS:
            columns.append(_joined([table.columns.get(column) for table in tables], lengths, _tensor_type(column)))
        columns.append(_histograms(tables, lengths))
        columns.append(_ordinals(np.repeat([ordinal for _, ordinal in rows], lengths)))
        return pa.RecordBatch.from_arrays(columns, schema=TENSORS)

    def modules(self, rows: Sequence[tuple[Mapping[str, Any], int]]) -> pa.RecordBatch:
        """Return module rows, given as (mapping, ordinal) pairs; keys that are no column are left out."""
        columns = []
        for field in MODULES:
            if field.name == "ordinal":
                columns.append(_ordinals([ordinal for _, ordinal in rows]))
                continue
            values = [row.get(field.name) for row, _ in rows]
            if field.type == TEXT:
                columns.append(self._texts("modules", field.name, ["" if value is None else value for value in values]))
            else:
                columns.append(_COLUMN_MAKERS[field.type](values))
        return pa.RecordBatch.from_arrays(columns, schema=MODULES)

    def _vocabulary(self, kind: str, column: str) -> Vocabulary:
        return self._vocabularies.setdefault((kind, column), Vocabulary())

    def _texts(self, kind: str, column: str, values: list[str]) -> pa.Array:
        vocabulary = self._vocabulary(kind, column)
        return vocabulary.column(np.array([vocabulary.codes((str(value),))[0] for value in values], dtype=np.int32))


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
    return lists((len(value or ()) for value in values), entries, _REAL, _there(values))


def _logged(values: Sequence[Any]) -> pa.Array:
    pairs = [pair for value in values for pair in (value or {}).items()]
    fields = [pa.field("key", pa.utf8(), nullable=False), pa.field("value", pa.float64())]
    keys, numbers_ = texts([str(key) for key, _ in pairs]), _floats([value for _, value in pairs])
    entries = pa.StructArray.from_arrays([keys, numbers_], fields=fields)
    return lists((len(value or {}) for value in values), entries, _LOGGED, _there(values))


_COLUMN_MAKERS: dict[Any, Callable[[Sequence[Any]], pa.Array]] = {
    pa.float64(): _floats,
    pa.int64(): _integers,
    pa.bool_(): _booleans,
    pa.utf8(): texts,
    _REAL: _float_lists,
    _LOGGED: _logged,
}


def _there(values: Sequence[Any]) -> Array:
    return np.array([value is not None for value in values], dtype=bool)


def _ordinals(values: Sequence[int] | Array) -> pa.Array:
    data = np.asarray(values, dtype=np.int64)
    return numbers(data, pa.int64(), data >= 0)


def _joined(parts: list[Array | None], lengths: list[int], kind: pa.DataType) -> pa.Array:
    """One column of several tables; null where a table lacks it, and where a count is not a finite number."""
    present = [part is not None for part in parts]
    whole = kind != pa.float64()
    dtype = np.int64 if whole else np.float64
    valid = np.repeat(present, lengths)
    filled = []
    for at, (part, length) in enumerate(zip(parts, lengths, strict=True)):
        data = np.zeros(length, dtype) if part is None else np.asarray(part)
        if whole and data.dtype.kind == "f":
            finite = np.isfinite(data)
            valid[sum(lengths[:at]) : sum(lengths[: at + 1])] &= finite
            data = np.where(finite, data, 0.0).astype(dtype)
        filled.append(data)
    return numbers(np.concatenate(filled), kind, valid)


def _histograms(tables: list[TensorTable], lengths: list[int]) -> pa.Array:
    present = [table.log2_hist is not None for table in tables]
    parts = [np.asarray(table.log2_hist, dtype=np.int64).reshape(-1) for table in tables if table.log2_hist is not None]
    values = numbers(np.concatenate(parts) if parts else np.zeros(0, np.int64), pa.int64())
    valid = np.repeat(present, lengths)
    return lists(valid * HISTOGRAM_BINS, values, _HISTOGRAM, valid)
