"""Steps that were handed in late, at the end of a run that had been thinned, go back to where they belong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gradmedic.record.arrays import codes_of, to_numpy
from gradmedic.record.segments import ordinals_of


def in_order(table: pa.Table) -> pa.Table:
    """Return the steps of one process in the order in which they were made.

    Args:
        table: rows in the order of writing; has "optimizer", "ordinal" and "time".

    Returns:
        The same table where no optimizer's ordinals fall: no row came late, or only behind all others. Otherwise the
        rows in the order of time, and those of one optimizer in the order of their ordinals whatever the clock said.
    """
    ordinals = ordinals_of(table)
    codes = codes_of(table["optimizer"])[0]
    owners = [np.flatnonzero(codes == code) for code in np.unique(codes)]
    if not any((np.diff(ordinals[rows]) < 0).any() for rows in owners):
        return table
    order = np.argsort(to_numpy(table["time"]), kind="stable")
    for rows in owners:
        places = np.flatnonzero(np.isin(order, rows, assume_unique=True))
        order[places] = rows[np.argsort(ordinals[rows], kind="stable")]
    return table.take(pa.array(order))
