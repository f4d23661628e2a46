"""Where two runs part: at all, and so much that it matters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from gradmedic.compare.comparison import FirstDifference, Parting, Phase
from gradmedic.compare.pairing import CommonSteps
from gradmedic.compare.tables import CommonTables
from gradmedic.record.arrays import Array, as_floats, to_numpy, valid_of

#: Scalars that two equal trainings share; times, and what counts rows of the record, are left out.
SCALARS = (
    "loss",
    "skipped",
    "lr",
    "grad_norm",
    "grad_norm_post",
    "clip_scale",
    "clip_threshold",
    "clipped",
    "transform_scale",
    "transform_threshold",
    "loss_scale",
    "nonfinite",
    "micro_batches",
    "stale_grads",
)
CURVES = ("loss", "grad_norm")


@dataclass(frozen=True, slots=True)
class _Column:
    values: Array
    there: Array


def first_difference(common: CommonSteps, tables: CommonTables) -> FirstDifference | None:
    """Return the first step at which a recorded number is not the same; None when all are."""
    columns = {name: (_column(common.a, name), _column(common.b, name)) for name in SCALARS}
    differing = {name: ~_same(*pair) for name, pair in columns.items()}
    logged = _logged_differing(common)
    apart = np.logical_or.reduce([*differing.values(), logged]) if len(common.steps) else np.zeros(0, dtype=bool)
    tensor_step, tensors = tables.first_difference()
    places = np.flatnonzero(apart)
    if not len(places):
        return None if tensor_step is None else FirstDifference(tensor_step, (), tensors, tensor_step)
    at = int(places[0])
    step = int(common.steps[at])
    if tensor_step is not None and tensor_step < step:
        return FirstDifference(tensor_step, (), tensors, tensor_step)
    told = [(name, _value(pair[0], at), _value(pair[1], at)) for name, pair in columns.items() if differing[name][at]]
    return FirstDifference(step, tuple(told), tensors, tensor_step)


def partings(common: CommonSteps, tolerance: float, sustained: int) -> list[Parting]:
    """Return where each curve differs by more than the tolerance for so many steps, or to the end."""
    found = []
    skipped = _skipped(common.a), _skipped(common.b)
    for name in CURVES:
        a, b = as_floats(common.a[name]), as_floats(common.b[name])
        known = ~(_unknown(common.a[name]) | _unknown(common.b[name]))
        # Two NaN are alike, but not what became of them: one run has used its own, the other has left the step out.
        # They are no difference to report; a difference that there was before, or comes after, goes on through them.
        undone = (skipped[0] != skipped[1]) & ~np.isfinite(a) & ~np.isfinite(b)
        at = parting_place(a, b, known, tolerance, sustained, undone)
        if at is not None:
            found.append(Parting(name, int(common.steps[at]), float(a[at]), float(b[at])))
    return found


def lost_in_both(common: CommonSteps) -> list[tuple[str, int]]:
    """Return (curve, step) from which on no known value is finite in either run; for the curves that end so."""
    found = []
    for name in CURVES:
        a, b = as_floats(common.a[name]), as_floats(common.b[name])
        places = np.flatnonzero(~(_unknown(common.a[name]) | _unknown(common.b[name])))
        lost = ~np.isfinite(a[places]) & ~np.isfinite(b[places])
        if len(lost) and lost[-1]:
            finite = np.flatnonzero(~lost)
            found.append((name, int(common.steps[places[finite[-1] + 1 if len(finite) else 0]])))
    return found


def skipped_alone(common: CommonSteps) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (number, first) of the steps that A skipped and B did not, and the other way round; () without any."""
    a, b = _skipped(common.a), _skipped(common.b)
    places = np.flatnonzero(a & ~b), np.flatnonzero(b & ~a)
    made = [(len(each), int(common.steps[each[0]])) if len(each) else () for each in places]
    return made[0], made[1]


def parting_place(
    a: Array, b: Array, known: Array, tolerance: float, sustained: int, goes_on: Array | None = None
) -> int | None:
    """Return the first place from which two curves differ by more than the tolerance at every known one of `sustained`.

    Args:
        a, b: values [N].
        known: where both were recorded [N].
        tolerance: of |a - b| / max(|a|, |b|).
        sustained: >= 1; a stretch that reaches the last known place may be shorter.
        goes_on: places that neither begin a stretch nor end one, whatever the values say [N].

    Returns:
        The place in the arrays, None when there is none. A value that is not finite differs from any that is.

    Example:
        >>> a, b = np.array([1.0, 1.0, 1.0, 1.0]), np.array([1.0, 2.0, 1.0, 2.0])
        >>> parting_place(a, b, np.ones(4, dtype=bool), 0.05, 2)
        3
    """
    places = np.flatnonzero(known)
    apart = _apart(a[places], b[places], tolerance)
    held = apart if goes_on is None else apart | goes_on[places]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], held, [False]]).astype(np.int8)))
    for start, stop in edges.reshape(-1, 2).tolist():
        begins = start + int(np.argmax(apart[start:stop]))
        if apart[begins] and (stop - begins >= sustained or stop == len(places)):
            return int(places[begins])
    return None


def phases(common: CommonSteps) -> list[Phase]:
    """Return medians over the early, middle and late third of the common steps, of those that were not skipped."""
    count = len(common.steps)
    edges = [0, count // 3, 2 * count // 3, count] if count >= 3 else ([0, count] if count else [0])
    curves = {name: (_known(common.a, name), _known(common.b, name)) for name in CURVES}
    made = []
    for start, stop in pairwise(edges):
        medians = {name: tuple(_median(values[start:stop]) for values in pair) for name, pair in curves.items()}
        first, last = int(common.steps[start]), int(common.steps[stop - 1])
        made.append(Phase(first, last, _pair(medians["loss"]), _pair(medians["grad_norm"])))
    return made


def _pair(values: tuple[float | None, ...]) -> tuple[float | None, float | None]:
    return values[0], values[1]


def _apart(a: Array, b: Array, tolerance: float) -> Array:
    finite = np.isfinite(a) & np.isfinite(b)
    one_only = np.isfinite(a) != np.isfinite(b)
    largest = np.maximum(np.abs(a), np.abs(b))
    with np.errstate(invalid="ignore", over="ignore"):
        # Halves: the difference of the largest numbers would be infinite.
        far = np.abs(a / 2 - b / 2) > tolerance * (largest / 2)
    apart: Array = (finite & far) | one_only
    return apart


def _column(table: pa.Table, name: str) -> _Column:
    column = table[name]
    valid = valid_of(column)
    values = to_numpy(column)
    return _Column(values, np.ones(len(values), dtype=bool) if valid is None else valid)


def _same(a: _Column, b: _Column) -> Array:
    """Whether two columns hold the same [N]: equal numbers, two NaN, or nothing in both."""
    equal = a.values == b.values
    if a.values.dtype.kind == "f":
        equal |= np.isnan(a.values) & np.isnan(b.values)
    same: Array = (a.there == b.there) & (equal | ~a.there)
    return same


def _logged_differing(common: CommonSteps) -> Array:
    count = len(common.steps)
    if all(_is_empty(table["logged"]) for table in (common.a, common.b)):
        return np.zeros(count, dtype=bool)
    pairs = zip(common.a["logged"].to_pylist(), common.b["logged"].to_pylist(), strict=True)
    return np.array([repr(dict(a or ())) != repr(dict(b or ())) for a, b in pairs], dtype=bool)


def _is_empty(column: pa.ChunkedArray) -> bool:
    return all(chunk.offsets[0].as_py() == chunk.offsets[len(chunk)].as_py() for chunk in column.chunks)


def _unknown(column: pa.ChunkedArray) -> Array:
    valid = valid_of(column)
    return np.zeros(len(column), dtype=bool) if valid is None else ~valid


def _known(table: pa.Table, name: str) -> Array:
    """Return a curve [N] with infinity for a measured NaN, so that NaN means *not known*, or of a skipped step."""
    values = as_floats(table[name])
    values[np.isnan(values) & ~_unknown(table[name])] = math.inf
    values[_skipped(table)] = math.nan
    return values


def _skipped(table: pa.Table) -> Array:
    skipped: Array = as_floats(table["skipped"]) == 1
    return skipped


def _median(values: Array) -> float | None:
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    middle = np.sort(known)
    half = len(middle) // 2
    if len(middle) % 2 or np.isinf(middle[half]):
        return float(middle[half])
    return float(middle[half - 1] / 2 + middle[half] / 2)


def _value(column: _Column, at: int) -> float | None:
    return float(column.values[at]) if column.there[at] else None
