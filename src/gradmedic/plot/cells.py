"""A table made to fit a picture, without losing what stands out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradmedic.plot.states import NOT_FINITE, NUMBER
from gradmedic.plot.tables import Table
from gradmedic.record.arrays import Array


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of a picture: `values` and `states` [R, C], and the edges of rows [R + 1] and of steps [C + 1]."""

    values: Array
    states: Array
    row_edges: Array
    step_edges: Array
    log: bool


def fitted(table: Table, columns: int, rows: int) -> Cells:
    """Return a table as a picture of at most so many columns and rows.

    A cell of several shows the value farthest from the median of its row (in log10 where the table is logarithmic); one
    that is not finite comes before all others, and a number before anything that is none.
    """
    values, states = table.values.T, table.states.T
    strangeness = _strangeness(values, states, log=table.log)
    starts = [_starts(count, most) for count, most in zip(values.shape, (rows, columns), strict=True)]
    for axis in (1, 0):
        picked = _picked(strangeness, starts[axis], axis)
        strangeness, values, states = (
            np.take_along_axis(each, picked, axis=axis) for each in (strangeness, values, states)
        )
    row_edges = np.append(starts[0], len(table.names)) - 0.5
    return Cells(values, states, row_edges, _step_edges(table.steps, starts[1]), table.log)


def _starts(count: int, most: int) -> Array:
    parts = min(count, most)
    return np.arange(parts) * count // parts


def _strangeness(values: Array, states: Array, *, log: bool) -> Array:
    """Return how much each cell [R, S] stands out; what is no number least, what is not finite most."""
    logs = np.log10(np.where(values > 0, values, np.nan)) if log else values
    strange = np.full(values.shape, -1.0)
    for row in np.flatnonzero((states == NUMBER).any(axis=1)):
        strange[row] = np.nan_to_num(np.abs(logs[row] - np.nanmedian(logs[row])), nan=-1.0)
    strange[states == NOT_FINITE] = np.inf
    return strange


def _picked(strangeness: Array, starts: Array, axis: int) -> Array:
    """Return, for each stretch along an axis, the place of its largest entry: indices for `take_along_axis`."""
    length = strangeness.shape[axis]
    if len(starts) == length:
        return np.arange(length).reshape((-1, 1) if axis == 0 else (1, -1))
    stops = [*starts[1:].tolist(), length]
    parts = [
        np.take(strangeness, range(start, stop), axis=axis).argmax(axis=axis) + start
        for start, stop in zip(starts.tolist(), stops, strict=True)
    ]
    return np.stack(parts, axis=axis)


def _step_edges(steps: Array, starts: Array) -> Array:
    """Return edges [C + 1] halfway between the recorded steps; steps that do not count up are drawn by their number.

    After a restart step indices begin anew: the picture then shows one column after the other.
    """
    places = steps.astype(np.float64)
    if np.any(np.diff(places) <= 0):
        places = np.arange(len(steps), dtype=np.float64)
    middles = (places[:-1] + places[1:]) / 2
    first = places[0] - (middles[0] - places[0] if len(middles) else 0.5)
    last = places[-1] + (places[-1] - middles[-1] if len(middles) else 0.5)
    edges: Array = np.concatenate([[first], middles, [last]])
    chosen: Array = edges[np.append(starts, len(places))]
    return chosen
