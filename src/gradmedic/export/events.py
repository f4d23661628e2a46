"""Events as a table: what all of them have in columns, each of them whole as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gradmedic.export.selection import Selection
from gradmedic.record.arrays import numbers, texts
from gradmedic.record.strict_json import dumps


def events_table(events: Sequence[Mapping[str, Any]], selection: Selection) -> pa.Table:
    """Return a table with columns time, kind, step, optimizer, code and json; events without a step are always in."""
    kept = [event for event in events if _wanted(event, selection)]
    steps = [_step(event) for event in kept]
    times = [event.get("time") for event in kept]
    columns = {
        "time": _numbers(times, pa.float64()),
        "kind": texts([_text(event.get("kind")) for event in kept]),
        "step": _numbers(steps, pa.int64()),
        "optimizer": texts([_text(event.get("optimizer")) for event in kept]),
        "code": texts([_text(_finding(event).get("code")) for event in kept]),
        "json": texts([dumps(event) for event in kept]),
    }
    return pa.Table.from_arrays(list(columns.values()), names=list(columns))


def _wanted(event: Mapping[str, Any], selection: Selection) -> bool:
    step = _step(event)
    if step is None:
        return True
    return (selection.first or 0) <= step and (selection.last is None or step < selection.last)


def _step(event: Mapping[str, Any]) -> int | None:
    step = event.get("step")
    if not isinstance(step, int) or isinstance(step, bool):
        return None
    return step if abs(step) < 2**63 else None


def _finding(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found = event.get("finding")
    return found if isinstance(found, Mapping) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _numbers(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    there = np.array([isinstance(value, (int, float)) for value in values], dtype=bool)
    return numbers(np.array([value if has else 0 for value, has in zip(values, there, strict=True)]), kind, there)
