"""Gradients of the ranks before the reduction, from their records, laid beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class LocalTable:
    """Local norms at the sampled steps that all ranks have.

    Attributes:
        steps: indices [S], ascending.
        ranks: their numbers, R of them, ascending.
        names: tensors that all ranks have, P of them.
        local: norms before the reduction [R, S, P]; NaN where a rank has none that is its own.
        lost: whether the gradient had elements that were not finite [R, S, P].
        reduced: norms after it [S, P]; NaN where they are not the same on all ranks (experts, replicas apart).
    """

    steps: Array
    ranks: list[int]
    names: list[str]
    local: Array
    lost: Array
    reduced: Array

    @property
    def shared(self) -> Array:
        """Which norms can be compared [S, P]: of replicas for which every rank has a gradient of its own."""
        found: Array = np.isfinite(self.local).all(axis=0) & np.isfinite(self.reduced) & ~self.lost.any(axis=0)
        return found

    def squares(self) -> tuple[Array, Array]:
        """Return the squared norms of all that can be compared: of the ranks [S, R], and of their mean [S].

        NaN for a step at which nothing can, or some value was lost.
        """
        shared = self.shared
        usable = shared.any(axis=1) & ~self.lost.any(axis=(0, 2))
        small = np.where(shared, self.local, 0.0)
        big = np.where(shared, self.reduced, 0.0)
        with np.errstate(over="ignore"):
            ranks, mean = np.square(small).sum(axis=2).T, np.square(big).sum(axis=1)
        ranks[~usable], mean[~usable] = np.nan, np.nan
        return ranks, mean


def local_table(run: Any, ranks: Sequence[int]) -> LocalTable | None:
    """Read what the ranks have recorded of their own gradients; None where there is nothing to compare.

    Args:
        run: an opened run folder, or a run in memory.
        ranks: at least two that have steps.
    """
    if len(ranks) < 2:
        return None
    local = {rank: _rows(run.matrix("local_norm", rank=rank)) for rank in ranks}
    lost = {rank: _rows(run.matrix("local_nonfinite", rank=rank)) for rank in ranks}
    steps = sorted(set.intersection(*(set(rows) for rows in lost.values())))
    names = _common(run, ranks)
    if not steps or not names:
        return None
    reduced = np.stack([_picked(_rows(run.matrix("norm", rank=rank)), steps, names) for rank in ranks])
    same = (reduced == reduced[0]).all(axis=0)
    return LocalTable(
        steps=np.array(steps, dtype=np.int64),
        ranks=list(ranks),
        names=names,
        local=np.stack([_picked(local[rank], steps, names) for rank in ranks]),
        lost=np.stack([_picked(lost[rank], steps, names) for rank in ranks]) > 0,
        reduced=np.where(same, reduced[0], np.nan),
    )


def same_gradients(table: LocalTable) -> Array:
    """Return at which steps [S] the gradients of all ranks were the same: equal norms, to the last bit."""
    equal = (table.local == table.local[0]).all(axis=0)
    shared = table.shared
    some = (np.where(shared, table.local[0], 0.0) > 0).any(axis=1)
    found: Array = some & (equal | ~shared).all(axis=1)
    return found


def _common(run: Any, ranks: Sequence[int]) -> list[str]:
    lists = [run.matrix("norm", rank=rank)[1] for rank in ranks]
    held = set.intersection(*map(set, lists))
    return [name for name in lists[0] if name in held]


def _rows(found: tuple[Array, list[str], Array]) -> dict[int, dict[str, float]]:
    """Return step -> tensor -> value, of the steps at which anything was measured; a restart's repeats are left out."""
    steps, names, values = found
    rows: dict[int, dict[str, float]] = {}
    for at in np.flatnonzero(~np.isnan(values).all(axis=1)):
        rows.setdefault(int(steps[at]), dict(zip(names, values[at].tolist(), strict=True)))
    return rows


def _picked(rows: Mapping[int, Mapping[str, float]], steps: Sequence[int], names: Sequence[str]) -> Array:
    nothing: Mapping[str, float] = {}
    return np.array([[rows.get(step, nothing).get(name, np.nan) for name in names] for step in steps])
