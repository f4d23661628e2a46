"""The scalars of every step, by optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gradmedic.record import Run
from gradmedic.record.arrays import codes_of, numbers, to_numpy, valid_of
from gradmedic.report.views.source import Floats, Integers, Mask, Source, parts_of, source_of

#: Columns of the step table that are curves.
CURVES: tuple[str, ...] = (
    "loss",
    "grad_norm",
    "grad_norm_post",
    "clip_threshold",
    "transform_threshold",
    "clip_scale",
    "lr",
    "loss_scale",
    "step_seconds",
    "overhead_seconds",
)
#: So many steps make one value of the clip rate.
RATE_WINDOW = 50


@dataclass(frozen=True, slots=True)
class Scalars:
    """The steps of one optimizer, in order; those of a restart follow those before it.

    Attributes:
        optimizer: its name.
        steps: step indices [S].
        parts: which of several processes that trained one after the other made them [S], from 0.
        time: unix seconds [S].
        columns: curve -> values [S]: NaN where nothing is known, infinite where what was measured is not finite.
        logged: the same of what the user logged, by name.
        clipped, skipped: [S].
        reasons: why a step was skipped, by place in the arrays.
    """

    optimizer: str
    steps: Integers
    parts: Integers
    time: Floats
    columns: dict[str, Floats]
    clipped: Mask
    skipped: Mask
    reasons: dict[int, str] = field(default_factory=dict)
    logged: dict[str, Floats] = field(default_factory=dict)


def scalars_of(run: Run | Source) -> dict[str, Scalars]:
    """Return the scalars of each optimizer, in order of first appearance.

    Example:
        >>> from gradmedic.frame import Frame
        >>> from gradmedic.record import MemoryRecorder
        >>> recorder = MemoryRecorder(meta={})
        >>> recorder.put(Frame(0, "adam", loss=float("nan")), keep=False)
        >>> scalars_of(recorder.run)["adam"].columns["loss"].tolist()
        [inf]
    """
    source = source_of(run)
    table, parts = source.steps, parts_of(source.steps)
    codes, names = codes_of(table["optimizer"])
    if len(source.optimizers) == 1:
        return {name: _of_optimizer(name, table, parts) for name in source.optimizers}
    order = np.argsort(codes, kind="stable")
    table, parts = table.take(numbers(order, pa.int64())), parts[order]
    edges = np.searchsorted(codes[order], np.arange(len(names) + 1))
    made = {}
    for name in source.optimizers:
        start, stop = edges[names.index(name)], edges[names.index(name) + 1]
        made[name] = _of_optimizer(name, table.slice(start, stop - start), parts[start:stop])
    return made


def clip_rate(clipped: npt.ArrayLike, window: int = RATE_WINDOW) -> Floats:
    """Return the share of clipped steps among the last `window` ones at each step, [S] float64 in [0, 1].

    Example:
        >>> clip_rate([True, False, True, True], window=2).tolist()
        [1.0, 0.5, 0.5, 1.0]
    """
    flags = np.asarray(clipped, dtype=np.float64)
    total = np.concatenate([[0.0], np.cumsum(flags)])
    stop = np.arange(1, len(flags) + 1)
    start = np.maximum(stop - window, 0)
    rate: Floats = (total[stop] - total[start]) / np.maximum(stop - start, 1)
    return rate


def lr_norm_correlation(lr: npt.ArrayLike, norm: npt.ArrayLike) -> tuple[float | None, int]:
    """Return Pearson's correlation of the learning rate with the log10 of the gradient norm.

    Args:
        lr, norm: [S]; steps where either is unknown, not finite or (the norm) zero are left out.

    Returns:
        (the correlation in [-1, 1], None where either stands still or fewer than 3 steps are left; number of steps).

    Example:
        >>> lr_norm_correlation([1.0, 2.0, 3.0], [10.0, 100.0, 1000.0])
        (1.0, 3)
    """
    x, y = np.asarray(lr, dtype=np.float64), np.asarray(norm, dtype=np.float64)
    usable = np.isfinite(x) & np.isfinite(y) & (y > 0)
    x, y = x[usable], np.log10(y[usable])
    n = len(x)
    if n < 3:
        return None, n
    x, y = _standard(x), _standard(y)
    if not (x.any() and y.any()):
        return None, n
    return float(np.clip((x * y).mean(), -1.0, 1.0).round(12)), n


def measured(column: pa.ChunkedArray) -> Floats:
    """Return a column of numbers [N]: NaN where it is null, plus infinity where a NaN was measured."""
    values = to_numpy(column).astype(np.float64)
    values[np.isnan(values)] = np.inf
    valid = valid_of(column)
    if valid is not None:
        values[~valid] = np.nan
    return values


def _standard(values: Floats) -> Floats:
    """Return values with mean 0 and standard deviation 1; zeros where all are the same but for rounding."""
    largest = np.abs(values).max()
    scaled = values / largest if largest > 0 else values
    centred = scaled - scaled.mean()
    deviation = centred.std()
    standard: Floats = centred / deviation if deviation > 1e-12 else np.zeros_like(centred)
    return standard


def _of_optimizer(name: str, table: pa.Table, parts: Integers) -> Scalars:
    skipped = _flags(table["skipped"])
    reasons = table["skip_reason"].to_pylist() if skipped.any() else []
    return Scalars(
        optimizer=name,
        steps=to_numpy(table["step"]).astype(np.int64),
        parts=parts,
        time=measured(table["time"]),
        columns={column: measured(table[column]) for column in CURVES},
        clipped=_flags(table["clipped"]),
        skipped=skipped,
        reasons={at: reasons[at] or "" for at in np.flatnonzero(skipped).tolist()},
        logged=_logged(table["logged"]),
    )


def _flags(column: pa.ChunkedArray) -> Mask:
    flags: Mask = to_numpy(column).astype(bool)
    valid = valid_of(column)
    return flags if valid is None else flags & valid


def _logged(column: pa.ChunkedArray) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    start = 0
    for chunk in column.chunks:
        offsets = to_numpy(chunk.offsets).astype(np.int64)
        keys, items = chunk.keys, chunk.items  # of the whole buffer, wherever the chunk begins
        rows = np.repeat(np.arange(len(chunk)), np.diff(offsets)) + start
        keys = keys.slice(int(offsets[0]), int(offsets[-1] - offsets[0])).dictionary_encode()
        items = measured(pa.chunked_array([items.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))]))
        codes = to_numpy(keys.indices)
        for code, key in enumerate(keys.dictionary.to_pylist()):
            values = found.setdefault(key, np.full(len(column), np.nan))
            values[rows[codes == code]] = items[codes == code]
        start += len(chunk)
    return found
