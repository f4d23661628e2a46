"""Which ranks have written to a record, how far each of them has come, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gradmedic.record.arrays import as_floats, to_numpy

#: Ranks that are expected beyond this number are not looked for one by one.
_MOST = 65536


@dataclass(frozen=True, slots=True)
class RankState:
    """How far one rank has come.

    Attributes:
        rank: its number.
        steps: recorded steps, those before a restart included.
        last_step, last_time: index and end (unix seconds) of the last one; None without any.
        ended: why its record was closed ("finished", "exception: ValueError"); None where it was not: the process was
            killed, or still runs.
        ended_at: when, unix seconds.
    """

    rank: int
    steps: int = 0
    last_step: int | None = None
    last_time: float | None = None
    ended: str | None = None
    ended_at: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {"rank": self.rank, "steps": self.steps, "last_step": self.last_step, "ended": self.ended}


def ranks_of(run: Any) -> list[int]:
    """Return the ranks that have steps, ascending; none where a run does not know of ranks."""
    table = getattr(run, "steps", None)
    if table is None or "rank" not in table.schema.names or not hasattr(run, "matrix"):
        return []
    found: list[int] = np.unique(to_numpy(table["rank"])).tolist()
    return found


def one_of_several(run: Any) -> bool:
    """Whether a job of several ranks is seen through the record of one of them alone, as it is without a record."""
    meta = getattr(run, "meta", {})
    world = meta.get("world")
    return bool(meta.get("distributed")) and isinstance(world, int) and world > 1 and len(ranks_of(run)) < 2


def rank_states(run: Any) -> list[RankState]:
    """Return the state of every rank of a job, those without a record included; empty for a run of one process.

    Args:
        run: an opened run folder; anything that has no ranks gives nothing.
    """
    present = ranks_of(run)
    meta = getattr(run, "meta", {})
    world = meta.get("world") if meta.get("distributed") else None
    expected = range(min(world, _MOST)) if isinstance(world, int) else ()
    if (len(present) < 2 and len(expected) < 2) or not hasattr(run, "steps"):
        return []
    ends = {int(event.get("rank", 0)): event for event in run.events if event.get("kind") == "end"}
    table = run.steps
    ranks, steps, times = to_numpy(table["rank"]), to_numpy(table["step"]), as_floats(table["time"])
    return [_state(rank, steps[ranks == rank], times[ranks == rank], ends) for rank in sorted({*present, *expected})]


def _state(rank: int, steps: Any, times: Any, ends: dict[int, Any]) -> RankState:
    last = int(np.argmax(times)) if len(times) and np.isfinite(times).all() else len(times) - 1
    last_time = float(times[last]) if len(times) else None
    end = ends.get(rank)
    ended_at = end.get("time") if end is not None else None
    if not isinstance(ended_at, (int, float)) or (last_time is not None and ended_at < last_time):
        end = ended_at = None  # of a process before a restart
    return RankState(
        rank=rank,
        steps=len(steps),
        last_step=int(steps[last]) if len(steps) else None,
        last_time=last_time,
        ended=None if end is None else str(end.get("reason", "")),
        ended_at=ended_at,
    )


def stopped_first(states: list[RankState]) -> RankState | None:
    """Return the rank that ended a job before its end; None where all finished, or none is known to have ended.

    That is one whose record was never closed while others were, the one that came least far; else the one whose error
    came first.
    """
    ended = [state for state in states if state.ended is not None]
    failed = [state for state in ended if state.ended != "finished"]
    silent = [state for state in states if state.ended is None and state.steps]
    if failed and silent:
        return min(silent, key=lambda state: (state.last_time or 0.0, state.rank))
    if failed:
        return min(failed, key=lambda state: (state.ended_at or 0.0, state.rank))
    return None
