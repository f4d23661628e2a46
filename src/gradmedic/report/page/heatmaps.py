"""The heatmaps of the page: which there are, and how many columns they have together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradmedic.report.page.buckets import bucketed, columns_of
from gradmedic.report.page.pack import pack_floats, pack_integers
from gradmedic.report.views.grids import TENSOR_GRIDS, Grid
from gradmedic.report.views.layers import LayerRow, joint_norms
from gradmedic.report.views.modules import MODULE_GRIDS, module_grid
from gradmedic.report.views.order import TensorRow
from gradmedic.report.views.source import Source

#: All heatmaps of a run take so many bytes at most, as base64.
MOST_BYTES = 7_500_000
_BYTES_OF_A_CELL = 16 / 3  # float32 in base64
#: Left out where nothing but this was recorded: they would be of one colour.
_PLAIN = {"nonfinite": 0.0, "status": 0.0}


def grid_entries(
    source: Source,
    grids: Sequence[Mapping[str, Grid]],
    rows: Sequence[TensorRow],
    layers: Sequence[LayerRow],
    columns: int,
) -> list[dict[str, Any]]:
    """Return the heatmaps of a run as JSON.

    Args:
        source, rows, layers: the run, its tensors and layers.
        grids: tensor grids by id, for each optimizer.
        columns: of each, at most.
    """
    held: list[tuple[Grid, str, bool]] = []
    for of_tensors in grids:
        held += [(grid, "tensors", TENSOR_GRIDS[grid.id]) for grid in of_tensors.values()]
        held.append((layer_grid(of_tensors["norm"], rows, layers), "layers", True))
        held += module_grids(source, of_tensors["norm"].optimizer)
    held = [(grid, of, log) for grid, of, log in held if tells(grid)]
    most = _columns_that_fit([grid for grid, _, _ in held], columns)
    return [grid_entry(grid, of, log, most) for grid, of, log in held]


def module_grids(source: Source, optimizer: str | None) -> list[tuple[Grid, str, bool]]:
    """Return the grids of the modules, what their rows are of, and whether they are logarithmic."""
    return [(module_grid(source, each, optimizer), "modules", log) for each, log in MODULE_GRIDS.items()]


def layer_grid(norm: Grid, rows: Sequence[TensorRow], layers: Sequence[LayerRow]) -> Grid:
    """Return the norms of the layers, from those of their tensors."""
    columns = {name: at for at, name in enumerate(norm.names)}
    held = [
        (layer.name, [columns[rows[at].name] for at in layer.tensors if rows[at].name in columns]) for layer in layers
    ]
    held = [(name, places) for name, places in held if places]
    values = joint_norms(norm.values, [places for _, places in held])
    return Grid("layer_norm", norm.optimizer, norm.steps, norm.parts, tuple(name for name, _ in held), values)


def tells(grid: Grid) -> bool:
    """Return whether a grid holds anything that is worth a picture."""
    known = ~np.isnan(grid.values)
    if not known.any():
        return False
    plain = _PLAIN.get(grid.id)
    return plain is None or bool((grid.values[known] != plain).any())


def _columns_that_fit(grids: Sequence[Grid], most: int) -> int:
    """Return how many columns fit; grids of fewer recorded steps leave room to the others."""
    low, high = 1, max(1, most)
    while low < high:
        middle = (low + high + 1) // 2
        cells = sum(len(grid.names) * min(middle, len(grid.steps)) for grid in grids)
        low, high = (middle, high) if cells * _BYTES_OF_A_CELL <= MOST_BYTES else (low, middle - 1)
    return low


def grid_entry(grid: Grid, of: str, log: bool, most: int) -> dict[str, Any]:
    """Return a grid as JSON, of at most so many columns."""
    columns = columns_of(grid.steps, grid.parts, most)
    return {
        "id": grid.id,
        "of": of,
        "log": log,
        "rows": list(grid.names),
        "first": pack_integers(columns.first),
        "last": pack_integers(columns.last),
        "optimizer": grid.optimizer,
        "values": pack_floats(bucketed(grid.values, columns, log=log)),
    }
