"""Maps and lists as columns of their own: `logged.<name>`, `extra.<name>`, `lrs.<n>`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gradmedic.record.arrays import Array, as_floats, numbers, to_numpy, valid_of


def keys_of(column: pa.ChunkedArray) -> list[str]:
    """Return the keys of a column of maps, in order of first appearance."""
    found: dict[str, None] = {}
    for chunk in column.chunks:
        offsets = to_numpy(chunk.offsets)
        if len(offsets) > 1:
            keys = chunk.keys.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
            found.update(dict.fromkeys(keys.unique().to_pylist()))
    return list(found)


def longest_of(column: pa.ChunkedArray) -> int:
    """Return the largest number of entries that a column of lists holds in one row."""
    lengths = [np.diff(to_numpy(chunk.offsets)).max(initial=0) for chunk in column.chunks]
    return int(max(lengths, default=0))


def map_columns(column: pa.ChunkedArray, keys: Sequence[str]) -> list[pa.ChunkedArray]:
    """Return one column of float64 for each key; null where a row has no such key, or null under it."""
    codes = {key: at for at, key in enumerate(keys)}
    parts = [_of_chunk(chunk, codes) for chunk in column.chunks]
    return [pa.chunked_array([part[at] for part in parts], type=pa.float64()) for at in range(len(keys))]


def list_columns(column: pa.ChunkedArray, width: int) -> list[pa.ChunkedArray]:
    """Return one column of float64 for each place in a column of lists; null where a row has fewer."""
    parts = []
    for chunk in column.chunks:
        offsets = to_numpy(chunk.offsets).astype(np.int64)
        values, there = _values(chunk.values)
        places = []
        for at in range(width):
            has = np.diff(offsets) > at
            index = np.where(has, offsets[:-1] + at, 0)
            places.append(_picked(values, there, index, has))
        parts.append(places)
    return [pa.chunked_array([part[at] for part in parts], type=pa.float64()) for at in range(width)]


def _of_chunk(chunk: pa.MapArray, codes: dict[str, int]) -> list[pa.Array]:
    offsets = to_numpy(chunk.offsets).astype(np.int64)
    rows = np.repeat(np.arange(len(chunk)), np.diff(offsets))
    entries = slice(int(offsets[0]), int(offsets[-1]))
    keys = chunk.keys.to_pylist()[entries]
    values, there = _values(chunk.items)
    owner = np.array([codes.get(key, -1) for key in keys], dtype=np.int64)
    columns = []
    for code in range(len(codes)):
        mine = np.flatnonzero(owner == code)
        index = np.zeros(len(chunk), dtype=np.int64)
        has = np.zeros(len(chunk), dtype=bool)
        index[rows[mine]], has[rows[mine]] = mine + entries.start, True
        columns.append(_picked(values, there, index, has))
    return columns


def _values(array: pa.Array) -> tuple[Array, Array]:
    valid = valid_of(array)
    return as_floats(array), np.ones(len(array), dtype=bool) if valid is None else valid


def _picked(values: Array, there: Array, index: Array, has: Array) -> pa.Array:
    if not len(values):
        return pa.nulls(len(index), pa.float64())
    return numbers(np.where(has, values[index], 0.0), pa.float64(), has & there[index])
