"""What the records of several ranks say beside each other: do the replicas of one model still agree?

Each rank keeps its own record, so that the comparison costs training nothing: it is made where a record is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.local_table import local_table
from gradmedic.diagnosis.rank_outliers import outlier_events, same_events
from gradmedic.diagnosis.ranks import ranks_of
from gradmedic.errors import InputError
from gradmedic.types import Event

Array = npt.NDArray[Any]

#: Columns that replicas have in common to the last bit: the weights' norms, which are the cause where both differ at
#: once, and the reduced gradients'.
_COLUMNS = ("weight_norm", "norm")
#: Origins that only say how far a lost value has spread.
_HEARSAY = ("elsewhere", "unknown", "parameter")


def rank_events(run: Any) -> list[Event]:
    """Return one event of kind "ranks" for each rank whose replica differs from the first one's; none for one rank.

    Where they agree, one of kind "rank_gradient" for each rank whose gradient, before the reduction, is out of
    proportion, and one of kind "same_gradients" where all are equal: see `rank_outliers`.

    Args:
        run: an opened run folder; anything that has no ranks gives nothing.

    Returns:
        `rank` and `reference`; `step` and `tensor` of the first difference; `column` it was seen in; `value`, `other`;
        `share` of the tensors that differ by then; `gradients_differ`, the share of common steps at which the
        gradients do; `steps` and `tensors` in common; `time` of that step on the reference.
    """
    ranks = ranks_of(run)
    if len(ranks) < 2 or not _trained_together(run.meta):
        return []
    if any(event.get("kind") == "paused" for event in run.events):
        return []  # the ranks' numbers of one step may be of different ones
    tables = {rank: {column: run.matrix(column, rank=rank) for column in _COLUMNS} for rank in ranks}
    first, others = ranks[0], ranks[1:]
    apart = [event for rank in others for event in _compare(tables[first], tables[rank], first, rank)]
    local = local_table(run, ranks)
    return apart if local is None else [*apart, *same_events(local), *outlier_events(run, local)]


def first_origins(events: Sequence[Event]) -> list[Event]:
    """Return the events without those origins that only say how far a value has spread that was lost before.

    Args:
        events: of a run, of all ranks.
    """
    origins = [event for event in events if event.get("kind") == "origin" and isinstance(event.get("step"), int)]

    def follows(event: Event) -> bool:
        if event.get("kind") != "origin" or event.get("class") not in _HEARSAY or event not in origins:
            return False
        earlier = [other for other in origins if other["step"] < event["step"]]
        same = [other for other in origins if other["step"] == event["step"] and other.get("class") not in _HEARSAY]
        return bool(earlier or same)

    return [event for event in events if not follows(event)]


def events_of_first_rank(events: Sequence[Event], run: Any = None, *, alone: bool = False) -> list[Event]:
    """Return what a reader of the first rank's frames is told: its own events, and where others have lost a value.

    A NaN on one rank is one on all after the reduction. Where another rank knows what made it, its word comes before
    the first one's, whose own numbers were finite.

    Args:
        events: of all ranks that have a record.
        run: their record, for the loss of that rank at that step; without it the loss is not told.
        alone: whether others have none, so that what came with the reduction may be theirs.
    """
    own = [event for event in events if not event.get("rank")]
    known = {
        event["step"]: {
            **event,
            "time": None,
            "loss": _loss_of(run, event["rank"], event["step"], event.get("optimizer")),
        }
        for event in reversed(events)
        if event.get("kind") == "origin" and event.get("rank") and event["class"] not in _HEARSAY
    }
    told: list[Event] = list(known.values())
    for event in own:
        if event.get("kind") == "origin" and event["class"] == "elsewhere" and not alone:
            event = {**event, "class": "backward"}  # nobody brought it
        told.append(event)
    return told


def _loss_of(run: Any, rank: int, step: int, optimizer: str | None) -> float | None:
    if not hasattr(run, "series"):
        return None
    try:
        steps, losses = (run.series(column, optimizer, rank=rank) for column in ("step", "loss"))
    except (InputError, TypeError):
        return None
    found = np.flatnonzero(steps == step)
    return float(losses[found[-1]]) if len(found) and losses[found[-1]] is not None else None


def _trained_together(meta: Any) -> bool:
    """Whether the processes were ranks of one job: several runs in one folder are several models."""
    return bool(meta.get("distributed"))


def _compare(one: dict[str, Any], other: dict[str, Any], reference: int, rank: int) -> Iterator[Event]:
    names = one["norm"][1]
    if sorted(names) != sorted(other["norm"][1]):
        return  # pipeline stages, experts: every rank has tensors of its own
    differs: dict[str, tuple[Array, Array, Array, Array]] = {}
    for column in _COLUMNS:
        steps, mine, theirs = _aligned(one[column], other[column])
        there = np.isfinite(mine) & np.isfinite(theirs)
        differs[column] = (steps, mine, theirs, there & (mine != theirs))
    found = [
        (int(steps[row]), _COLUMNS.index(column), int(row))
        for column, (steps, _, _, apart) in differs.items()
        for row in np.flatnonzero(apart.any(axis=1))[:1]
    ]
    if not found:
        return
    step, cause, row = min(found)
    column = _COLUMNS[cause]
    steps, mine, theirs, apart = differs[column]
    place = int(np.argmax(apart[row]))
    gradients = differs["norm"][3]
    yield {
        "kind": "ranks",
        "rank": rank,
        "reference": reference,
        "step": step,
        "column": column,
        "tensor": names[place],
        "value": float(theirs[row, place]),
        "other": float(mine[row, place]),
        "share": float(apart[: row + 1].any(axis=0).mean()),
        "gradients_differ": float(gradients.any(axis=1).mean()) if len(gradients) else 0.0,
        "steps": len(differs["norm"][0]),
        "tensors": len(names),
    }


def _aligned(one: tuple[Array, list[str], Array], other: tuple[Array, list[str], Array]) -> tuple[Array, Array, Array]:
    """Return (steps in common, values of one, values of the other), both in the order of the first one's names."""
    steps, mine, theirs = np.intersect1d(one[0], other[0], return_indices=True)
    order = [other[1].index(name) for name in one[1]]
    return steps, one[2][mine], other[2][theirs][:, order]
