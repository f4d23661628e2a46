"""Whether two runs measured the same of their modules."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_KEYS = ("step", "module", "what", "call", "leaf")
_LEFT_OUT = frozenset({*_KEYS, "rank", "process", "optimizer", "ordinal"})


def same_modules(a: pa.Table, b: pa.Table, names: tuple[str, str]) -> bool:
    """Return whether every module row that both have holds the same numbers, NaN equal to NaN.

    Args:
        a, b: module tables.
        names: of the optimizer in each.
    """
    left, right = (_rows(table, name) for table, name in zip((a, b), names, strict=True))
    return all(left[key] == right[key] for key in left.keys() & right.keys())


def _rows(table: pa.Table, optimizer: str) -> dict[tuple[Any, ...], str]:
    found: dict[tuple[Any, ...], str] = {}
    for row in table.to_pylist():
        if row["optimizer"] == optimizer:
            numbers = {name: value for name, value in row.items() if name not in _LEFT_OUT}
            # `repr` of a float tells every bit but that of a NaN.
            found.setdefault(tuple(row[key] for key in _KEYS), repr(numbers))
    return found
