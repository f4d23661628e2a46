"""The batches that ranks were given at a step, as their records describe them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradmedic.record.arrays import booleans, codes_of, to_numpy

#: What the first input of a step's first batch is described by; see `probes.batch_identity`.
Batch = dict[str, float]


def batches_of(run: Any, steps: Sequence[int]) -> dict[tuple[int, int], Batch]:
    """Return (rank, step) -> the description of the first input of the step's first batch, where there is one.

    Args:
        run: an opened run folder.
        steps: which steps.
    """
    modules = getattr(run, "modules", None)
    if modules is None or "rank" not in modules.schema.names or not modules.num_rows:
        return {}
    kinds, texts = codes_of(modules["what"])
    if "batch" not in texts:
        return {}
    wanted = (kinds == texts.index("batch")) & np.isin(to_numpy(modules["step"]), list(steps))
    found: dict[tuple[int, int], Batch] = {}
    columns = ["rank", "step", "call", "extra"]
    for row in modules.select(columns).filter(booleans(wanted)).to_pylist():
        if row["call"] == 0:
            described = {key: float(value) for key, value in row["extra"] or () if value is not None}
            found.setdefault((int(row["rank"]), int(row["step"])), described)
    return found


def rows_of_batches(run: Any, ranks: Sequence[int], steps: Sequence[int]) -> float | None:
    """Return the mean number of rows that a rank was given at a step, micro-batches together; None if not known."""
    found = batches_of(run, steps)
    rows = [batch.get("rows", math.nan) for (rank, _), batch in found.items() if rank in set(ranks)]
    if not rows or not math.isfinite(mean := float(np.mean(rows))):
        return None
    micro = run.series("micro_batches")
    return mean * max(1.0, float(np.median(micro)) if len(micro) else 1.0)
