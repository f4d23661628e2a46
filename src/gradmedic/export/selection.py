"""Which rows and columns are exported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from gradmedic.errors import InputError
from gradmedic.record.arrays import booleans, to_numpy
from gradmedic.record.schema import SCHEMAS

#: Columns that say which row it is; they are always exported.
KEYS = ("rank", "process", "step", "optimizer", "name", "module", "what", "call", "leaf")
_RANGE = re.compile(r"\s*(-?\d*)\s*:\s*(-?\d*)\s*")


@dataclass(frozen=True, slots=True)
class Selection:
    """What is wanted of a run.

    Attributes:
        first, last: steps in [first, last), as Python slices; None: open.
        columns: names of columns beside the keys; None: all of them.
    """

    first: int | None = None
    last: int | None = None
    columns: frozenset[str] | None = None

    def wants(self, column: str) -> bool:
        """Whether a column is exported."""
        return self.columns is None or column in KEYS or column in self.columns

    def rows(self, table: pa.Table) -> pa.Table:
        """Return the rows of the wanted steps."""
        if self.first is None and self.last is None:
            return table
        steps = to_numpy(table["step"])
        kept = steps >= (self.first or 0)
        if self.last is not None:
            kept &= steps < self.last
        return table if kept.all() else table.filter(booleans(kept))

    def of(self, table: pa.Table) -> pa.Table:
        """Return the wanted rows and columns of a table; logged maps keep the wanted keys only as columns do."""
        return self.rows(table).select([name for name in table.schema.names if self.wants(name)])


def parse_steps(text: str | None) -> tuple[int | None, int | None]:
    """Return (first, last) of a text such as "100:200", "100:" or ":200".

    Raises:
        InputError: it is no such text, or the range is empty.
    """
    if text is None:
        return None, None
    match = _RANGE.fullmatch(text)
    if match is None or match[1].startswith("-") or match[2].startswith("-"):
        raise InputError(f'steps must be FIRST:LAST, such as "100:200", "100:" or ":200" (LAST left out); got {text!r}')
    first = int(match[1]) if match[1] else None
    last = int(match[2]) if match[2] else None
    if last is not None and last <= (first or 0):
        raise InputError(f"steps {text!r} hold no step: FIRST must lie below LAST, which is left out")
    return first, last


def parse_columns(names: Iterable[str] | None, logged: Sequence[str] = ()) -> frozenset[str] | None:
    """Return the names of columns, None for all.

    Args:
        names: columns of any of the tables; several may stand in one text, with commas between.
        logged: names that were logged; they may be given bare or as "logged.<name>".

    Raises:
        InputError: no table has such a column.
    """
    if names is None:
        return None
    wanted = {part.strip() for text in names for part in text.split(",") if part.strip()}
    known = {name for schema in SCHEMAS.values() for name in schema.names}
    known |= {f"logged.{name}" for name in logged} | set(KEYS)
    unknown = sorted(name for name in wanted if name not in known and not name.startswith("extra."))
    if unknown:
        raise InputError(f"no column {unknown[0]!r} in any table; there are: {', '.join(sorted(known))}")
    return frozenset(wanted)
