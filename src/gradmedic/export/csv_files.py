"""A run as CSV files: every number exact, and null, NaN and infinity told apart.

Lines are put together by Arrow, column by column; Python would need a minute for what takes seconds so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gradmedic.export.events import events_table
from gradmedic.export.flat import keys_of, list_columns, longest_of, map_columns
from gradmedic.export.parquet_files import KINDS
from gradmedic.export.selection import Selection
from gradmedic.export.source import Source
from gradmedic.record.strict_json import dumps

#: Left out: 64 numbers in a cell serve nobody.
LEFT_OUT = ("log2_hist",)
_ROWS_AT_ONCE = 1 << 16
_Widths = dict[str, list[str]]


def write_csv(source: Source, selection: Selection, folder: Path) -> Iterator[str]:
    """Write steps, tensors, modules and events without histograms, and meta.json beside them; yield the files' names.

    Args:
        source: the run.
        selection: which rows and columns.
        folder: an empty folder.
    """
    for kind in KINDS:
        nested = _nested_columns(source, kind, selection)
        name = f"{kind}.csv"
        tables = (_flat(selection.rows(table), nested, selection) for table in source.tables(kind))
        if _write_tables(tables, folder / name):
            yield name
    if _write_tables(iter([events_table(source.run.events, selection)]), folder / "events.csv"):
        yield "events.csv"
    (folder / "meta.json").write_text(dumps(source.run.meta) + "\n", encoding="utf-8")
    yield "meta.json"


def _nested_columns(source: Source, kind: str, selection: Selection) -> _Widths:
    """Return the columns that maps and lists of a kind become; the header must name them before the first row."""
    found: dict[str, dict[str, None]] = {}
    if kind == "tensors":
        return {}
    for table in source.tables(kind):
        rows = selection.rows(table)
        for field in table.schema:
            if pa.types.is_map(field.type):
                found.setdefault(field.name, {}).update(dict.fromkeys(keys_of(rows[field.name])))
            elif pa.types.is_list(field.type):
                places = map(str, range(longest_of(rows[field.name])))
                found.setdefault(field.name, {}).update(dict.fromkeys(places))
    return {column: list(keys) for column, keys in found.items()}


def _flat(table: pa.Table, nested: _Widths, selection: Selection) -> pa.Table:
    columns: dict[str, Any] = {}
    for field in table.schema:
        name, column = field.name, table[field.name]
        if name in LEFT_OUT:
            continue
        if not pa.types.is_nested(field.type):
            if selection.wants(name):
                columns[name] = column
            continue
        keys = [key for key in nested[name] if selection.wants(name) or selection.wants(f"{name}.{key}")]
        split = map_columns(column, keys) if pa.types.is_map(field.type) else list_columns(column, len(nested[name]))
        columns.update({f"{name}.{key}": part for key, part in zip(keys, split, strict=False)})
    return pa.Table.from_arrays(list(columns.values()), names=list(columns))


def _write_tables(tables: Iterator[pa.Table], path: Path) -> bool:
    written = False
    with open(path, "wb") as file:
        for table in tables:
            if not written:
                file.write(",".join(_quoted(name) for name in table.schema.names).encode() + b"\n")
                written = True
            for at in range(0, table.num_rows, _ROWS_AT_ONCE):
                file.write(_lines(table.slice(at, _ROWS_AT_ONCE)))
    if not written:
        path.unlink()
    return written


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(sign in text for sign in '",\r\n') or not text else text


def _lines(table: pa.Table) -> bytes:
    import pyarrow.compute as pc

    cells = [_cells(table.column(at).combine_chunks()) for at in range(table.num_columns)]
    cells[-1] = pc.binary_join_element_wise(cells[-1], "\n", "")
    joined = pc.binary_join_element_wise(*cells, ",")
    return b"".join(_bytes_of(part) for part in (joined.chunks if isinstance(joined, pa.ChunkedArray) else [joined]))


def _bytes_of(lines: pa.StringArray) -> bytes:
    """Return texts one after the other: so they lie in memory already."""
    offsets = np.frombuffer(lines.buffers()[1], dtype=np.int32)[lines.offset : lines.offset + len(lines) + 1]
    data = lines.buffers()[2]
    return b"" if data is None else data[int(offsets[0]) : int(offsets[-1])].to_pybytes()


def _cells(column: Any) -> Any:
    """Return a column as texts: null is empty, an empty text is "", a float is what reads back to the same bits."""
    import pyarrow.compute as pc

    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
        plain = column.cast(pa.utf8())
        escaped = pc.binary_join_element_wise('"', pc.replace_substring(plain, '"', '""'), '"', "")
        special = pc.or_(pc.match_substring_regex(plain, '[",\r\n]'), pc.equal(plain, ""))
        return pc.fill_null(pc.if_else(special, escaped, plain), "")
    written = column.cast(pa.utf8())
    if pa.types.is_floating(column.type):
        written = pc.if_else(pc.is_nan(column), "NaN", written)
    return pc.fill_null(written, "")
