"""Which rows of a table are the most troubled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradmedic.diagnosis import Finding
from gradmedic.plot.steps import spread
from gradmedic.plot.tables import Table
from gradmedic.record.arrays import Array
from gradmedic.report.views import Source, tensor_grid, tensor_rows, trouble_of


def trouble_by_tensor(source: Source, findings: Sequence[Finding]) -> dict[str, float]:
    """Return how far each tensor is from healthy; see `gradmedic.report.views.trouble_of`."""
    rows = tensor_rows(source)
    named = [(each.severity, each.where) for finding in findings for each in (finding, *finding.folded)]
    found = np.zeros(len(rows))
    for optimizer in source.optimizers:
        norm, zeros = (tensor_grid(source, column, optimizer, rows=rows) for column in ("norm", "zero_share"))
        found = np.maximum(found, trouble_of(rows, norm, zeros, named))
    return {row.name: float(amount) for row, amount in zip(rows, found.tolist(), strict=True)}


def most_troubled(table: Table, trouble: dict[str, float], count: int) -> list[int]:
    """Return which `count` rows of a table to show, in its order.

    Those with the most trouble; where fewer than that have any, the rest is evenly spread over the healthy ones.
    """
    amounts: Array = np.array([max(trouble.get(name, 0.0) for name in names) for names in table.members])
    order = np.argsort(-amounts, kind="stable")
    sick = [int(at) for at in order if amounts[at] > 0][:count]
    healthy = [at for at in range(len(amounts)) if at not in set(sick)]
    return sorted(sick + [healthy[place] for place in spread(len(healthy), count - len(sick))])
