"""The tables of several steps as columns, one below the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gradmedic.frame import TENSOR_COLUMNS, TensorTable
from gradmedic.record.arrays import Array, cut, lists, numbers
from gradmedic.record.schema import HISTOGRAM, TENSORS
from gradmedic.types import HISTOGRAM_BINS

_NAMES_BY_KIND = {
    kind: [name for name in TENSOR_COLUMNS if TENSORS.field(name).type == kind]
    for kind in {TENSORS.field(name).type for name in TENSOR_COLUMNS}
}


def tensor_columns(tables: Sequence[TensorTable], lengths: list[int]) -> dict[str, pa.Array]:
    """Return the statistics of tables of the given lengths: `TENSOR_COLUMNS` and the histograms.

    Null where a table lacks a column, and where a count is not a finite number.
    """
    rows = sum(lengths)
    found = {"log2_hist": _histograms(tables, lengths)}
    by_table = [table.columns for table in tables]
    measured = set().union(*by_table)
    for kind, names in _NAMES_BY_KIND.items():
        present = [name for name in names if name in measured]
        if present:
            parts = [columns.get(name) for name in present for columns in by_table]
            joined = _joined(parts, lengths * len(present), kind)
            found.update(zip(present, cut(joined, len(present)), strict=True))
        found.update((name, pa.nulls(rows, kind)) for name in names if name not in measured)
    return found


def _joined(parts: list[Array | None], lengths: list[int], kind: pa.DataType) -> pa.Array:
    valid, filled = None, [part for part in parts if part is not None]
    if len(filled) < len(parts):
        valid = np.repeat([part is not None for part in parts], lengths)
        empty = np.float64 if kind == pa.float64() else np.int64
        pairs = zip(parts, lengths, strict=True)
        filled = [np.zeros(length, empty) if part is None else part for part, length in pairs]
    if list(map(len, filled)) != lengths:
        raise ValueError("a column of a tensor table has not one value for each name")
    data: Array = np.concatenate(filled)
    if kind == pa.float64() or data.dtype.kind != "f":
        return numbers(data, kind, valid)
    arrays = [np.asarray(part) for part in filled]
    if any(array.dtype.kind != "f" for array in arrays):  # as a float, a large integer loses its last digits
        counts = [_counts(array) for array in arrays]
        data, finite = (np.concatenate(each) for each in zip(*counts, strict=True))
    else:
        data, finite = _counts(data)
    return numbers(data, kind, finite if valid is None else finite & valid)


def _counts(data: Array) -> tuple[Array, Array]:
    """Return whole numbers [N], and which of them were finite."""
    if data.dtype.kind != "f":
        return data, np.ones(len(data), dtype=bool)
    finite = np.isfinite(data)
    return (data if finite.all() else np.where(finite, data, 0.0)).astype(np.int64), finite


def _histograms(tables: Sequence[TensorTable], lengths: list[int]) -> pa.Array:
    present = [table.log2_hist is not None for table in tables]
    if not any(present):
        return pa.nulls(sum(lengths), HISTOGRAM)
    parts = [np.asarray(table.log2_hist, dtype=np.int64).reshape(-1) for table in tables if table.log2_hist is not None]
    valid = np.repeat(present, lengths)
    return lists(valid * HISTOGRAM_BINS, numbers(np.concatenate(parts), pa.int64()), HISTOGRAM, valid)
