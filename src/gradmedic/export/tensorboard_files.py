"""A run as TensorBoard event files: scalars, norms by layer, magnitudes as histograms, findings as text."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gradmedic.errors import InputError
from gradmedic.export.event_file import EventFile
from gradmedic.export.flat import keys_of, map_columns
from gradmedic.export.selection import Selection
from gradmedic.export.source import Source
from gradmedic.record.arrays import Array, as_floats, codes_of, starts_of_groups, to_numpy, valid_of
from gradmedic.types import HISTOGRAM_BINS

#: Step columns that become scalars; those that nothing is known of are left out.
SCALARS = (
    "loss",
    "lr",
    "grad_norm",
    "grad_norm_post",
    "clip_threshold",
    "clip_scale",
    "clip_frequency",
    "clipped",
    "transform_threshold",
    "transform_scale",
    "skipped",
    "loss_scale",
    "nonfinite",
    "micro_batches",
    "step_seconds",
    "overhead_seconds",
)
#: Columns by tensor, unless others are named.
BY_TENSOR = ("norm",)
_Process = tuple[int, str]


def write_tensorboard(source: Source, selection: Selection, folder: Path) -> Iterator[str]:
    """Write one event file for each process; yield their names.

    Args:
        source: the run.
        selection: which steps, and which columns: of the steps all by default, of the tensors `norm` and histograms.
        folder: an empty folder.

    Raises:
        InputError: TensorBoard is not installed.
    """
    files: dict[_Process, EventFile] = {}
    try:
        for table in source.tables("steps"):
            for key, rows in _by_process(selection.rows(table)):
                where = folder if not files else folder / f"rank{key[0]}-{key[1]}"
                files.setdefault(key, EventFile(where, _first_time(rows)))
                _write_scalars(files[key], rows, selection)
        times = _times_by_step(source.run.steps)
        for table in source.tables("tensors"):
            for key, rows in _by_process(selection.rows(table)):
                if key not in files:
                    files[key] = EventFile(folder / f"rank{key[0]}-{key[1]}", 0.0)
                _write_tensors(files[key], rows, selection, times.get(key, {}))
        if files:
            _write_findings(next(iter(files.values())), source.run.events, selection)
    finally:
        for file in files.values():
            file.close()
    for file in files.values():
        yield str(file.path.relative_to(folder))


def require_tensorboard() -> None:
    """Raise InputError where TensorBoard is not installed."""
    try:
        importlib.import_module("tensorboard")
    except ImportError:
        raise InputError(
            "export to TensorBoard needs the package tensorboard: pip install 'gradmedic[tensorboard]'"
        ) from None


def _by_process(table: pa.Table) -> Iterator[tuple[_Process, pa.Table]]:
    codes, names = codes_of(table["process"])
    ranks = to_numpy(table["rank"])
    starts = [*starts_of_groups(ranks, codes).tolist(), table.num_rows]
    for start, stop in pairwise(starts):
        yield (int(ranks[start]), names[codes[start]]), table.slice(start, stop - start)


def _first_time(steps: pa.Table) -> float:
    times = as_floats(steps["time"])
    known = times[np.isfinite(times)]
    return float(known[0]) if len(known) else 0.0


def _times_by_step(steps: pa.Table) -> dict[_Process, dict[tuple[str, int], float]]:
    found: dict[_Process, dict[tuple[str, int], float]] = {}
    for key, rows in _by_process(steps):
        codes, names = codes_of(rows["optimizer"])
        pairs = zip(codes, to_numpy(rows["step"]), as_floats(rows["time"]), strict=True)
        found.setdefault(key, {}).update({(names[code], int(step)): float(time) for code, step, time in pairs})
    return found


def _write_scalars(file: EventFile, rows: pa.Table, selection: Selection) -> None:
    codes, names = codes_of(rows["optimizer"])
    prefixes = [f"{name}/" if len(names) > 1 else "train/" for name in names]
    columns = {name: _known(rows[name]) for name in SCALARS if selection.wants(name)}
    logged = [key for key in keys_of(rows["logged"]) if selection.wants("logged") or selection.wants(f"logged.{key}")]
    for key, column in zip(logged, map_columns(rows["logged"], logged), strict=True):
        columns[f"logged.{key}"] = _known(column)
    times = as_floats(rows["time"])
    for at, step in enumerate(to_numpy(rows["step"]).tolist()):
        prefix = prefixes[codes[at]]
        values = [(prefix + name, float(value[at])) for name, (value, there) in columns.items() if there[at]]
        file.scalars(step, times[at], values)


def _known(column: Any) -> tuple[Array, Array]:
    valid = valid_of(column)
    return to_numpy(column), np.ones(len(column), dtype=bool) if valid is None else valid


def _write_tensors(
    file: EventFile, rows: pa.Table, selection: Selection, times: Mapping[tuple[str, int], float]
) -> None:
    codes, names = codes_of(rows["name"])
    owners, optimizers = codes_of(rows["optimizer"])
    steps = to_numpy(rows["step"])
    wanted = BY_TENSOR if selection.columns is None else sorted(selection.columns & set(rows.schema.names))
    columns = {name: _measured(rows, name) for name in wanted if pa.types.is_floating(rows.schema.field(name).type)}
    magnitudes = _Magnitudes(rows) if selection.wants("log2_hist") else None
    starts = [*starts_of_groups(owners, steps).tolist(), len(steps)]
    for start, stop in pairwise(starts):
        step = int(steps[start])
        time = times.get((optimizers[owners[start]], step), file.began)
        values = [
            (f"{column}/{names[codes[at]]}", float(value[at]))
            for column, (value, there) in columns.items()
            for at in range(start, stop)
            if there[at]
        ]
        file.scalars(step, time, values)
        if magnitudes is not None and magnitudes.has(start):
            entries = ((f"magnitude/{names[codes[at]]}", *magnitudes.of(at)) for at in range(start, stop))
            file.histograms(step, time, entries)


def _measured(rows: pa.Table, column: str) -> tuple[Array, Array]:
    """Return a column and where it was measured: not where it is null, nor where the tensor had no gradient."""
    values, there = _known(rows[column])
    seen = to_numpy(rows["status"]) == 0
    return values, there & seen


class _Magnitudes:
    """The histograms of a piece of the tensor table, as TensorBoard has them."""

    def __init__(self, rows: pa.Table) -> None:
        column = rows["log2_hist"].combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        self._offsets, self._values = to_numpy(column.offsets), to_numpy(column.values)
        self._zeros, self._largest = as_floats(rows["zero_count"]), as_floats(rows["max_abs"])
        self._means, self._norms = as_floats(rows["mean_abs"]), as_floats(rows["norm"])

    def has(self, row: int) -> bool:
        """Whether a row has a histogram."""
        return bool(self._offsets[row + 1] - self._offsets[row] == HISTOGRAM_BINS)

    def of(self, row: int) -> tuple[Array, float, float, float, float]:
        """Return (counts [64], zeros, largest, mean of magnitudes, norm) of a row."""
        counts = self._values[self._offsets[row] : self._offsets[row + 1]]
        if len(counts) != HISTOGRAM_BINS:
            counts = np.zeros(HISTOGRAM_BINS, dtype=np.int64)
        columns = (self._zeros, self._largest, self._means, self._norms)
        zeros, largest, mean, norm = (_or_zero(float(column[row])) for column in columns)
        return counts, zeros, largest, mean, norm


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _write_findings(file: EventFile, events: Iterable[Mapping[str, Any]], selection: Selection) -> None:
    for event in events:
        finding = event.get("finding")
        if event.get("kind") != "finding" or not isinstance(finding, Mapping):
            continue
        step = finding.get("step", 0)
        if not isinstance(step, int) or abs(step) >= 2**63:  # damaged
            continue
        if step < (selection.first or 0) or (selection.last is not None and step >= selection.last):
            continue
        file.text(step, _time_of(event), f"finding/{finding.get('code')}", markdown(finding))


def _time_of(event: Mapping[str, Any]) -> float:
    time = event.get("time")
    return float(time) if isinstance(time, (int, float)) else math.nan


def markdown(finding: Mapping[str, Any]) -> str:
    """Return a finding, as `to_json` has it, as a text for TensorBoard."""
    remedies = "".join(f"\n- {entry.get('text', '')}" for entry in finding.get("remedies", ()))
    heading = f"**{finding.get('code')} {finding.get('title', '')}** ({finding.get('severity')})"
    return f"{heading}\n\n{finding.get('message', '')}\n{remedies}"
