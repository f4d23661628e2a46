"""Heatmaps of a few hundred columns that keep what stands out of the thousands of steps behind them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: A row's median is that of at most so many of its values, evenly spread.
_SAMPLE = 512
#: Stands for the logarithm of zero: below all of float64, and farther from everything than any other value.
_LOG_ZERO = -400.0


@dataclass(frozen=True, slots=True)
class Columns:
    """How recorded steps are put together: column c holds the steps from starts[c] up to the next one's start.

    Attributes:
        starts: [C] places in the steps.
        first, last: step indices at either end of each column [C].
    """

    starts: Integers
    first: Integers
    last: Integers


def columns_of(steps: npt.ArrayLike, parts: npt.ArrayLike, most: int) -> Columns:
    """Cut recorded steps into at most `most` columns of about equal numbers of steps, none across two processes.

    Args:
        steps, parts: step index, and which process made it [S].
        most: >= 1; more columns than this only where there are more processes.

    Example:
        >>> columns_of([0, 1, 2, 3], [0, 0, 0, 0], 2).last.tolist()
        [1, 3]
    """
    index, process = np.asarray(steps, dtype=np.int64), np.asarray(parts, dtype=np.int64)
    if not len(index):
        return Columns(index, index, index)
    begins = np.concatenate([[0], np.flatnonzero(np.diff(process)) + 1])
    if len(index) <= most:
        starts = np.arange(len(index))
    else:
        spread = np.linspace(0, len(index), max(1, most - len(begins) + 1), endpoint=False).astype(np.int64)
        starts = np.union1d(begins, spread)
    stops = np.append(starts[1:], len(index))
    return Columns(starts, index[starts], index[stops - 1])


def bucketed(values: npt.ArrayLike, columns: Columns, *, log: bool) -> Floats:
    """Put one value of each row into each column: the one farthest from the row's median.

    Args:
        values: [S, P].
        columns: of the S steps.
        log: distances are of logarithms; a zero is then farther away than any other number.

    Returns:
        [P, C]: a value that is not finite comes before all others; NaN where nothing was recorded in the column.
    """
    given = np.asarray(values, dtype=np.float64)
    steps, rows = given.shape
    if len(columns.starts) == steps:
        return np.ascontiguousarray(given.T)
    scale = _logs(given) if log else given
    distance = scale - _medians(scale)
    np.abs(distance, out=distance)
    np.copyto(distance, -1.0, where=np.isnan(given))
    np.copyto(distance, np.inf, where=np.isinf(given))
    made = np.empty((rows, len(columns.starts)))
    every = np.arange(rows)
    stops = np.append(columns.starts[1:], steps)
    for at, (start, stop) in enumerate(zip(columns.starts.tolist(), stops.tolist(), strict=True)):
        made[:, at] = given[distance[start:stop].argmax(axis=0) + start, every]
    return made


def _logs(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        logs: Floats = np.abs(values)
        np.log10(logs, out=logs)
    logs[values == 0] = _LOG_ZERO
    return logs


def _medians(values: Floats) -> Floats:
    sample = values[:: max(1, -(-len(values) // _SAMPLE))]
    ordered = np.sort(np.where(np.isfinite(sample), sample, np.nan), axis=0)  # NaN last
    count = (~np.isnan(ordered)).sum(axis=0)
    middle = np.take_along_axis(ordered, np.maximum(count - 1, 0)[None] // 2, axis=0)[0]
    return np.where(count > 0, middle, 0.0)
