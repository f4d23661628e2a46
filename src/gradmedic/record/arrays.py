"""numpy to Arrow and back, through buffers only.

`pa.array`, `pa.table` and `to_numpy` import pandas wherever it is installed, which costs a training process half a
second and many megabytes. `from_buffers` does not, and copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]

#: Texts that repeat, as Arrow has them.
TEXT = pa.dictionary(pa.int32(), pa.utf8())

_DTYPES: dict[Any, str] = {
    pa.float64(): "<f8",
    pa.int64(): "<i8",
    pa.int32(): "<i4",
    pa.int16(): "<i2",
    pa.int8(): "|i1",
}


def numbers(values: Array, kind: pa.DataType, valid: Array | None = None) -> pa.Array:
    """Return numbers [N] as an Arrow array; null where `valid` (bool [N]) is False."""
    data = np.ascontiguousarray(values, dtype=_DTYPES[kind])
    return pa.Array.from_buffers(kind, len(data), [_bitmap(valid), pa.py_buffer(data)])


def booleans(values: Array, valid: Array | None = None) -> pa.Array:
    """Return booleans [N] as an Arrow array."""
    bits = np.packbits(np.asarray(values, dtype=bool), bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [_bitmap(valid), pa.py_buffer(bits)])


def cut(joined: pa.Array, count: int) -> list[pa.Array]:
    """Cut columns of one length, which stand one behind the other in an array, apart; copies nothing."""
    length = len(joined) // count
    return [joined.slice(at * length, length) for at in range(count)]


def texts(values: Sequence[str | None]) -> pa.Array:
    """Return texts [N] as an Arrow array; None is null."""
    if all(value is None for value in values):
        return pa.nulls(len(values), pa.utf8())
    data = [b"" if value is None else str(value).encode("utf-8", "replace") for value in values]
    stops = np.cumsum([0, *map(len, data)], dtype=np.int64).astype("<i4")
    valid = np.array([value is not None for value in values], dtype=bool)
    buffers = [_bitmap(valid), pa.py_buffer(stops), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.utf8(), len(data), buffers)


def lists(lengths: Sequence[int] | Array, values: pa.Array, kind: pa.DataType, valid: Array | None = None) -> pa.Array:
    """Return lists [N] of the given lengths, or maps when `kind` is a map and `values` its entries."""
    offsets = np.zeros(len(lengths) + 1, dtype="<i4")
    np.cumsum(lengths, out=offsets[1:])
    buffers = [_bitmap(valid), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=[values])


def constant(value: Array, length: int, kind: pa.DataType) -> pa.Array:
    """Return one number, `length` times."""
    return numbers(np.full(length, value), kind)


def to_numpy(column: pa.ChunkedArray | pa.Array) -> Array:
    """Return a column of numbers or booleans as numpy [N]; what is null holds anything (see `valid_of`)."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [_chunk_to_numpy(chunk) for chunk in chunks]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else _chunk_to_numpy(pa.nulls(0, column.type))


def valid_of(column: pa.ChunkedArray | pa.Array) -> Array | None:
    """Return which entries are not null, bool [N]; None when all are there."""
    return None if column.null_count == 0 else to_numpy(column.is_valid())


def as_floats(column: pa.ChunkedArray | pa.Array) -> Array:
    """Return a column of numbers as float64 [N], NaN where it is null."""
    values = to_numpy(column).astype(np.float64)
    valid = valid_of(column)
    if valid is not None:
        values[~valid] = np.nan
    return values


def codes_of(column: pa.ChunkedArray) -> tuple[Array, list[str]]:
    """Return a dictionary column as codes [N] (int32) and the texts that they stand for."""
    if not column.num_chunks or not len(column):
        return np.zeros(0, dtype=np.int32), []
    column = column.unify_dictionaries()
    codes = np.concatenate([_chunk_to_numpy(chunk.indices) for chunk in column.chunks])
    return codes, column.chunk(0).dictionary.to_pylist()


def starts_of_groups(*columns: Array) -> Array:
    """Return where, in columns [N], a row differs from the one before; 0 is the first, none for no rows."""
    if not len(columns[0]):
        return np.zeros(0, dtype=np.int64)
    changed = np.any([np.diff(column) != 0 for column in columns], axis=0)
    return np.concatenate([[0], np.flatnonzero(changed) + 1])


def text_column(codes: Array, dictionary: pa.Array) -> pa.Array:
    """Return texts that are given by their codes [N] in a dictionary."""
    return pa.DictionaryArray.from_arrays(numbers(codes, pa.int32()), dictionary)


class Vocabulary:
    """The texts of one column in order of first appearance; a code, once given, never changes."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._known: dict[tuple[str, ...], Array] = {}
        self._dictionary: pa.Array | None = None

    def codes(self, names: tuple[str, ...]) -> Array:
        """Return the codes [N] of N names; cheap for names that came together before."""
        found = self._known.get(names)
        if found is not None:
            return found
        if len(self._known) >= 64:  # a model whose parameters keep changing
            self._known.clear()
        codes = self._known[names] = self.code_of_each(names)
        return codes

    def code_of_each(self, names: Iterable[str]) -> Array:
        """Return the codes [N] of N names that need not come together again."""
        return np.array([self._codes.setdefault(name, len(self._codes)) for name in names], dtype=np.int32)

    def column(self, codes: Array) -> pa.Array:
        """Return the dictionary column of `codes`."""
        if self._dictionary is None or len(self._dictionary) != len(self._codes):
            self._dictionary = texts(list(self._codes))
        return text_column(codes, self._dictionary)


def _bitmap(valid: Array | None) -> pa.Buffer | None:
    if valid is None or bool(valid.all()):
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _chunk_to_numpy(chunk: pa.Array) -> Array:
    start, stop = chunk.offset, chunk.offset + len(chunk)
    data = chunk.buffers()[1]
    if pa.types.is_boolean(chunk.type):
        bits = np.frombuffer(data or b"", dtype=np.uint8)
        return np.unpackbits(bits, count=stop, bitorder="little")[start:].astype(bool)
    dtype = _DTYPES[chunk.type]
    return np.frombuffer(data, dtype=dtype, count=stop)[start:] if data is not None else np.zeros(len(chunk), dtype)
