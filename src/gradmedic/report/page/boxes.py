"""Box plots: quantiles of gradient magnitudes by tensor, at a few steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradmedic.record.arrays import to_numpy, valid_of
from gradmedic.report.page.pack import pack_floats
from gradmedic.report.views.boxes import quantiles_of
from gradmedic.report.views.order import TensorRow
from gradmedic.report.views.source import Floats, Integers, Source
from gradmedic.types import HISTOGRAM_BINS

QUANTILES: tuple[float, ...] = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
MOST_BOX_STEPS = 24
#: Boxes of all steps together; models of many tensors show fewer steps.
_MOST_BOXES = 12_000


def box_entries(
    source: Source, rows: list[TensorRow], optimizers: Sequence[str | None], *, newest: bool = False
) -> list[dict[str, Any]]:
    """Return the quantiles of |g| at up to 24 of the steps whose histograms were recorded, the first and the last too.

    Args:
        source: the run.
        rows: its tensors; box rows are indices into them.
        optimizers: whose steps; None joins those of all by their index.
        newest: only the last one of each.

    Returns:
        {"step", "optimizer", "rows", "q"} for each step, by optimizer; "q" [R, 7]: least, 5, 25, 50, 75, 95 percent,
        greatest of the finite nonzero elements, NaN where there are none.
    """
    valid = valid_of(source.tensors["log2_hist"])
    has = np.ones(source.tensors.num_rows, dtype=bool) if valid is None else valid
    ranks = {row.name: at for at, row in enumerate(rows)}
    made: list[dict[str, Any]] = []
    for optimizer in optimizers:
        places = source.places(optimizer)
        chosen = np.arange(source.tensors.num_rows) if places.chosen is None else places.chosen
        there = has[chosen]
        present = np.unique(places.row[there])
        most = max(2, min(MOST_BOX_STEPS, _MOST_BOXES // max(1, len(rows))))
        if newest:
            present = present[-1:]
        elif len(present) > most:
            present = present[np.unique(np.linspace(0, len(present) - 1, most).astype(int))]
        for row in present.tolist():
            mine = np.flatnonzero(there & (places.row == row))
            names = [places.names[at] for at in places.column[mine].tolist()]
            order = sorted(range(len(names)), key=lambda at: ranks[names[at]])
            made.append(
                {
                    "step": int(places.steps[row]),
                    "optimizer": optimizer,
                    "rows": [ranks[names[at]] for at in order],
                    "q": pack_floats(_quantiles(source, chosen[mine][order])),
                }
            )
    return made


def _quantiles(source: Source, at: Integers) -> Floats:
    """Return the quantiles [R, 7] of the histograms of tensor rows [R], which lie near each other in the table."""
    low, high = int(at.min()), int(at.max()) + 1
    lists = source.tensors["log2_hist"].slice(low, high - low)
    flat = np.concatenate([to_numpy(chunk.flatten()) for chunk in lists.chunks]).reshape(-1, HISTOGRAM_BINS)
    valid = valid_of(lists)
    place = np.cumsum(valid) - 1 if valid is not None else np.arange(high - low)
    return quantiles_of(flat[place[at - low]], QUANTILES, source.column("min_abs")[at], source.column("max_abs")[at])
