"""A run as Parquet files (zstd), as pandas, polars and duckdb open them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from gradmedic.export.events import events_table
from gradmedic.export.selection import Selection
from gradmedic.export.source import Source
from gradmedic.record.strict_json import dumps

KINDS = ("steps", "tensors", "modules")
_ROWS_OF_A_GROUP = 1 << 17


def write_parquet(source: Source, selection: Selection, folder: Path) -> Iterator[str]:
    """Write steps, tensors, modules and events, and meta.json beside them; yield the names of the files.

    Args:
        source: the run.
        selection: which rows and columns.
        folder: an empty folder.
    """
    for kind in KINDS:
        name = f"{kind}.parquet"
        if _write_tables((selection.of(table) for table in source.tables(kind)), folder / name):
            yield name
    if _write_tables(iter([events_table(source.run.events, selection)]), folder / "events.parquet"):
        yield "events.parquet"
    (folder / "meta.json").write_text(dumps(source.run.meta) + "\n", encoding="utf-8")
    yield "meta.json"


def _write_tables(tables: Iterator[pa.Table], path: Path) -> bool:
    """Write tables of one schema, a row group or more for each; return whether there was any."""
    import pyarrow.parquet as pq

    writer = None
    try:
        for table in tables:
            plain = _plain_texts(table)
            if writer is None:
                writer = pq.ParquetWriter(path, plain.schema, compression="zstd")
            writer.write_table(plain, row_group_size=_ROWS_OF_A_GROUP)
    finally:
        if writer is not None:
            writer.close()
    return writer is not None


def _plain_texts(table: pa.Table) -> pa.Table:
    """Return the table with texts as texts: Parquet has dictionaries of its own, and readers differ in Arrow's."""
    fields = [field.with_type(pa.utf8()) if pa.types.is_dictionary(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields))
