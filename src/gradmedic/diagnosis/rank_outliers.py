"""Which rank's gradient, before the reduction, is out of all proportion to those of the others.

A sampled step at which one rank's is large proves little: batches differ, and near a solved task a single sample can
outweigh all others by orders. What counts is that it is the same rank time and again, or a ratio that no batch has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.local_table import LocalTable, same_gradients
from gradmedic.diagnosis.rank_batches import batches_of
from gradmedic.types import Event

Floats = npt.NDArray[np.float64]

#: From where on a rank is out of proportion. The norm of pure noise falls with the root of the batch: a batch a
#: hundred times as small has ten times the norm.
LARGE = 10.0
SMALL = 1 / 100
#: A ratio that counts without being seen again.
HUGE = 100.0
#: So many samples one after the other.
LASTING = 4
#: So many samples one after the other with the same gradients, of this share of the tensors at least.
SAME = 3
MOST = 0.9


def outlier_events(run: Any, table: LocalTable) -> Iterator[Event]:
    """Yield one event of kind "rank_gradient" for each rank that is out of proportion.

    Args:
        run: the record that the table was read from.
        table: local norms of its ranks.

    Yields:
        `rank`; `how` "large", "small" or "once"; `step` first of them; `times` (median over these samples), `value` and
        `median` at that step, `tensor` that carries most of it, `samples`; `inputs` and `losses`: the same rank's
        inputs (rms) and loss over the median of the others', None if not known; `fingerprint` of its batch; `world`.
    """
    squares, _ = table.squares()
    norms = np.sqrt(squares)
    ratios = np.stack([_ratio(norms, at) for at in range(len(table.ranks))], axis=1)
    usual = float(np.nanmedian(norms)) if np.isfinite(norms).any() else math.nan
    found: dict[int, tuple[str, slice]] = {}
    for at in range(len(table.ranks)):
        run_of_large = longest(ratios[:, at] >= LARGE)
        once = np.flatnonzero((ratios[:, at] >= HUGE) & (norms[:, at] >= LARGE * usual))
        if run_of_large.stop - run_of_large.start >= LASTING:
            found[at] = ("large", run_of_large)
        elif len(once):
            found[at] = ("once", slice(int(once[0]), int(once[0]) + 1))
    if not found:  # of two ranks that differ, the larger one moves the weights
        for at in range(len(table.ranks)):
            run_of_small = longest(ratios[:, at] <= SMALL)
            if run_of_small.stop - run_of_small.start >= LASTING:
                found[at] = ("small", run_of_small)
    for at, (how, where) in found.items():
        yield _event(run, table, norms, ratios, at, how, where)


def same_events(table: LocalTable) -> Iterator[Event]:
    """Yield one event of kind "same_gradients" where the ranks of a job made the same gradients time and again.

    Nothing is said where less than nine in ten tensors can be compared: ranks that share a model by hand have the same
    batches by design, and weights of their own.

    Yields:
        `step` first of the samples; `samples` one after the other; `world`.
    """
    where = longest(same_gradients(table) & (table.shared.mean(axis=1) >= MOST))
    if where.stop - where.start >= SAME:
        yield {
            "kind": "same_gradients",
            "step": int(table.steps[where.start]),
            "samples": where.stop - where.start,
            "world": len(table.ranks),
        }


def longest(flags: npt.NDArray[np.bool_]) -> slice:
    """Return where the longest unbroken stretch of True lies; empty if there is none."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    starts, stops = edges[::2], edges[1::2]
    if not len(starts):
        return slice(0, 0)
    best = int(np.argmax(stops - starts))
    return slice(int(starts[best]), int(stops[best]))


def _ratio(norms: Floats, at: int) -> Floats:
    """Return a rank's norm over the median of the others' [S]; 1 where both are 0, NaN where nothing is known."""
    others = np.median(np.delete(norms, at, axis=1), axis=1)
    own = norms[:, at]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((own == 0) & (others == 0), 1.0, own / others)


def _event(
    run: Any, table: LocalTable, norms: Floats, ratios: Floats, at: int, how: str, where: slice
) -> dict[str, Any]:
    rank, others = table.ranks[at], [other for other in table.ranks if other != table.ranks[at]]
    first = where.start
    step = int(table.steps[first])
    local = np.where(table.shared[first], table.local[:, first], 0.0)
    carried = local[at] if how != "small" else np.median(np.delete(local, at, axis=0), axis=0)
    batches = batches_of(run, [step])
    return {
        "kind": "rank_gradient",
        "how": how,
        "rank": rank,
        "step": step,
        "times": float(np.median(ratios[where, at])),
        "value": float(norms[first, at]),
        "median": float(np.median(np.delete(norms[first], at))),
        "tensor": table.names[int(np.argmax(carried))],
        "samples": where.stop - where.start,
        "world": len(table.ranks),
        "inputs": _over(*(batches.get((each, step), {}).get("rms") for each in (rank, *others))),
        "losses": _over(*(_loss(run, each, step) for each in (rank, *others))),
        "fingerprint": batches.get((rank, step), {}).get("fingerprint"),
    }


def _loss(run: Any, rank: int, step: int) -> float | None:
    at = np.flatnonzero(run.series("step", rank=rank) == step)
    return float(run.series("loss", rank=rank)[at[0]]) if len(at) else None


def _over(own: float | None, *others: float | None) -> float | None:
    """Return a number over the median of others; None where one of them is not known."""
    known = [other for other in others if other is not None and math.isfinite(other)]
    middle = float(np.median(known)) if known else 0.0
    return own / middle if own is not None and math.isfinite(own) and middle > 0 else None
