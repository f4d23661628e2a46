"""Statistics of modules over the sampled steps."""

from __future__ import annotations

import numpy as np

from gradmedic.plot.scalars import check_optimizer
from gradmedic.plot.states import ABSENT, NOT_FINITE, NUMBER, ZERO
from gradmedic.plot.steps import Steps, chosen_steps
from gradmedic.plot.tables import Patterns, Table, matching
from gradmedic.report.views import Source, TensorRow, module_grid

#: Metric -> whether it belongs on a logarithmic scale.
MODULE_METRICS = {"activation_rms": True, "activation_zero": False, "output_grad": True}


def module_table(source: Source, metric: str, *, optimizer: str | None, layers: Patterns, steps: Steps) -> Table:
    """Return a statistic of modules, as `gradmedic.plot.tables.table_of` does of gradients; a row is a module.

    Raises:
        InputError: there is no such optimizer, or a pattern matches nothing.
    """
    check_optimizer(source, optimizer)
    grid = module_grid(source, metric, optimizer)
    kept = chosen_steps(grid.steps, steps)
    wanted = {row.name for row in matching([TensorRow(name) for name in grid.names], layers)}
    rows = [at for at, name in enumerate(grid.names) if name in wanted]
    values = grid.values[kept][:, rows]
    log = MODULE_METRICS[metric]
    states = np.full(values.shape, NUMBER, dtype=np.uint8)
    states[np.isinf(values)] = NOT_FINITE
    states[np.isnan(values)] = ABSENT
    if log:
        states[values == 0] = ZERO
    names = tuple(grid.names[at] for at in rows)
    return Table(
        names=names,
        blocks=("",) * len(names),
        members=tuple((name,) for name in names),
        steps=grid.steps[kept],
        values=np.where(states == NUMBER, values, np.nan),
        states=states,
        log=log,
    )
