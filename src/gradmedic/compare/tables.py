"""The tensor tables of two runs, brought to the same steps and tensors."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import pyarrow as pa

from gradmedic.compare.comparison import LayerDifference
from gradmedic.frame import SEEN, TENSOR_COLUMNS
from gradmedic.record.arrays import Array, to_numpy
from gradmedic.report.views.order import TensorRow
from gradmedic.report.views.source import Places, Source
from gradmedic.types import HISTOGRAM_BINS

_PART = 48


class CommonTables:
    """What both runs recorded of the tensors of one optimizer.

    Args:
        a, b: the runs.
        names: of the optimizer in each.
        rows: the tensors of A in execution order.

    Attributes:
        names: tensors of both, in execution order [P].
        steps: step indices of the tables that both have [S].
    """

    def __init__(self, a: Source, b: Source, names: tuple[str, str], rows: list[TensorRow]) -> None:
        self._sources = (a, b)
        self._places = (a.places(names[0]), b.places(names[1]))
        keys = [(places.parts << _PART) + places.steps for places in self._places]
        both, *self._rows = np.intersect1d(keys[0], keys[1], return_indices=True)
        self.steps: Array = both & ((1 << _PART) - 1)
        order = {row.name: at for at, row in enumerate(rows)}
        shared = set(self._places[0].names) & set(self._places[1].names)
        self.names = tuple(sorted(shared, key=lambda name: (order.get(name, len(order)), name)))
        self._columns = [_indices(places, self.names) for places in self._places]

    def pair(self, column: str) -> tuple[Array, Array]:
        """Return one statistic in A and in B, each [S, P]; NaN where it was not measured."""
        a, b = (
            places.matrix(source.column(column))[np.ix_(rows, columns)]
            for source, places, rows, columns in zip(
                self._sources, self._places, self._rows, self._columns, strict=True
            )
        )
        return a, b

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that both have."""
        return not len(self.steps) or not self.names

    def first_difference(self) -> tuple[int | None, tuple[str, ...]]:
        """Return (step of the first table in which anything differs, the tensors that differ in it)."""
        if self.is_empty:
            return None, ()
        apart = np.zeros((len(self.steps), len(self.names)), dtype=bool)
        for column in TENSOR_COLUMNS:
            a, b = self._norms if column == "norm" else self.pair(column)
            apart |= ~((a == b) | (np.isnan(a) & np.isnan(b)))
        steps = np.flatnonzero(apart.any(axis=1))
        if not len(steps):
            return None, ()
        at = int(steps[0])
        return int(self.steps[at]), tuple(self.names[place] for place in np.flatnonzero(apart[at]).tolist())

    def same_histograms(self) -> bool:
        """Return whether every histogram that both have is the same."""
        if self.is_empty:
            return True
        rows = []
        for source, places, steps, columns in zip(self._sources, self._places, self._rows, self._columns, strict=True):
            at = places.matrix(np.arange(source.tensors.num_rows, dtype=np.float64))[np.ix_(steps, columns)]
            rows.append(np.nan_to_num(at, nan=-1.0).astype(np.int64).reshape(-1))
        there = (rows[0] >= 0) & (rows[1] >= 0)
        a, b = (_Histograms(source) for source in self._sources)
        has = a.there[rows[0][there]] & b.there[rows[1][there]]
        return bool(np.array_equal(a.of(rows[0][there][has]), b.of(rows[1][there][has])))

    def layers(self) -> list[LayerDifference]:
        """Return how the norm of each tensor compares, those that differ most first."""
        if self.is_empty:
            return []
        norms = self._norms
        seen = [status == SEEN for status in self.pair("status")]
        bad = [
            np.nan_to_num(nan) + np.nan_to_num(inf) > 0
            for nan, inf in zip(self.pair("nan_count"), self.pair("inf_count"), strict=True)
        ]
        made = []
        for at, name in enumerate(self.names):
            finite = [seen[side][:, at] & ~bad[side][:, at] for side in (0, 1)]
            usable = finite[0] & finite[1]
            count = int(usable.sum())
            if count or bad[0][:, at].any() or bad[1][:, at].any():
                shares = _share(bad[0][:, at], seen[0][:, at]), _share(bad[1][:, at], seen[1][:, at])
                a, b = (norms[side][usable if count else finite[side], at] for side in (0, 1))
                ratio = _log2_ratio(a, b) if count else math.nan
                made.append(LayerDifference(name, ratio, _median(a), _median(b), count, shares))
        return sorted(made, key=lambda layer: -layer.distance)

    @cached_property
    def _norms(self) -> tuple[Array, Array]:
        return self.pair("norm")


class _Histograms:
    """The histograms of a tensor table, by row."""

    def __init__(self, source: Source) -> None:
        column = source.tensors["log2_hist"].combine_chunks()
        column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
        offsets = to_numpy(column.offsets).astype(np.int64)
        self._starts, self._values = offsets[:-1], to_numpy(column.values)
        self.there: Array = np.diff(offsets) == HISTOGRAM_BINS

    def of(self, rows: Array) -> Array:
        """Return the counts [N, 64] of rows that have a histogram."""
        counts: Array = self._values[self._starts[rows][:, None] + np.arange(HISTOGRAM_BINS)]
        return counts


def _indices(places: Places, names: tuple[str, ...]) -> Array:
    at = {name: place for place, name in enumerate(places.names)}
    return np.array([at[name] for name in names], dtype=np.int64)


def _share(flags: Array, among: Array) -> float:
    return float(flags[among].mean()) if among.any() else 0.0


def _median(values: Array) -> float:
    return float(np.median(values)) if len(values) else math.nan


def _log2_ratio(a: Array, b: Array) -> float:
    """Return the median of log2(b / a); two zeros are equal, one zero is infinitely far from what is none."""
    ratio = np.where(a > 0, np.where(b > 0, 0.0, -np.inf), np.where(b > 0, np.inf, 0.0))
    both = (a > 0) & (b > 0)
    ratio[both] = np.log2(b[both]) - np.log2(a[both])
    low, high = np.sort(ratio)[[(len(ratio) - 1) // 2, len(ratio) // 2]].tolist()
    return float(low if low == high else (low + high) / 2 if np.isfinite(low) and np.isfinite(high) else low)
