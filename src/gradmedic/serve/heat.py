"""Heatmaps that grow to the right: columns that no later step will change, and those of the newest steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gradmedic.report.page.buckets import Columns, bucketed
from gradmedic.report.page.heatmaps import layer_grid
from gradmedic.report.page.pack import pack_floats, pack_integers, unpack
from gradmedic.report.views.grids import TENSOR_GRIDS, Grid, tensor_grid
from gradmedic.report.views.layers import LayerRow
from gradmedic.report.views.order import TensorRow
from gradmedic.report.views.source import Source

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Heat:
    """One heatmap.

    Attributes:
        entry: what JSON says of it beside its numbers.
        first, last: steps at either end of each column [C].
        values: [P, C].
    """

    entry: Mapping[str, Any]
    first: Array
    last: Array
    values: Array

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Heat:
        """Return the heatmap of a JSON entry."""
        return cls(entry, unpack(entry["first"]), unpack(entry["last"]), unpack(entry["values"]))

    def plus(self, columns: Columns, values: Array) -> Heat:
        """Return it with more columns, `values` [P, C] of them."""
        first, last = np.concatenate([self.first, columns.first]), np.concatenate([self.last, columns.last])
        return replace(self, first=first, last=last, values=np.concatenate([self.values, values], axis=1))

    def json(self) -> dict[str, Any]:
        """Return its JSON entry."""
        packed = {"first": pack_integers(self.first), "last": pack_integers(self.last)}
        return {**self.entry, **packed, "values": pack_floats(self.values)}


def new_grids(recent: Source, rows: Sequence[TensorRow], layers: Sequence[LayerRow], after: int) -> dict[str, Grid]:
    """Return the grids of tensors and layers, by id, of the steps after one.

    Args:
        recent: the newest tables, and some before them: sizes of weights hold until they are measured again.
        rows, layers: of the whole run.
        after: a step.
    """
    made = {}
    for name in TENSOR_GRIDS:
        grid = tensor_grid(recent, name, rows=list(rows))
        new = grid.steps > after
        made[name] = replace(grid, steps=grid.steps[new], parts=grid.parts[new], values=grid.values[new])
    return made | {"layer_norm": layer_grid(made["norm"], rows, layers)}


def columns_of_width(steps: Array, width: int) -> Columns:
    """Return columns of `width` steps each; the last one may have fewer.

    Example:
        >>> columns_of_width(np.array([3, 4, 6, 8, 9]), 2).last.tolist()
        [4, 8, 9]
    """
    starts = np.arange(0, len(steps), width)
    stops = np.minimum(starts + width, len(steps))
    return Columns(starts, steps[starts], steps[stops - 1])


def block_of(names: Sequence[str], grid: Grid, columns: Columns, *, log: bool) -> Array:
    """Return a grid's values in columns, in the rows of a heatmap: float64 [P, C], NaN where it has no such row.

    Raises:
        KeyError: it has a row that the heatmap lacks.
    """
    place = {name: at for at, name in enumerate(names)}
    made = np.full((len(names), len(columns.starts)), np.nan, dtype=np.float64)
    made[[place[name] for name in grid.names]] = bucketed(grid.values, columns, log=log)
    return made
