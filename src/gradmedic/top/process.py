"""Which of a run's processes trains now, and whether it is still there: by what they write and say, not by clocks."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import numpy as np

from gradmedic.record.arrays import codes_of, to_numpy
from gradmedic.record.run import Run

Counts = Mapping[tuple[int, str], int]


def step_counts(run: Run) -> dict[tuple[int, str], int]:
    """Return how many steps are recorded of each process, by (rank, process), in the order in which they began."""
    steps = run.steps
    ranks = to_numpy(steps["rank"]).astype(np.int64)
    codes, names = codes_of(steps["process"])
    pairs, first, counts = np.unique(
        np.stack([ranks, codes.astype(np.int64)], axis=1), axis=0, return_index=True, return_counts=True
    )
    order = np.argsort(first, kind="stable").tolist()
    return {(int(pairs[at, 0]), names[int(pairs[at, 1])]): int(counts[at]) for at in order}


def process_that_trains(counts: Counts, before: Counts, run: Run, followed: str | None) -> tuple[int, str] | None:
    """Return (rank, process) of the process to follow: of the lowest rank, None where no step was made.

    Args:
        counts, before: steps by process now, and when this was last asked.
        run: knows which processes have ended.
        followed: the process that is followed so far.
    """
    if not counts:
        return None
    rank = min(rank for rank, _ in counts)
    own = [process for at, process in counts if at == rank]
    grown = [process for process in own if before and counts[rank, process] > before.get((rank, process), 0)]
    going = [process for process in own if (rank, process) not in run.ends]
    if grown:
        return rank, grown[-1]
    if followed in own and (followed in going or not going):
        return rank, str(followed)
    return rank, (going or own)[-1]


def steps_by_rank(counts: Counts, run: Run) -> dict[int, int]:
    """Return how many steps each rank has made with the processes that it has now: those not ended, or the last."""
    made: dict[int, int] = {}
    for rank in sorted({rank for rank, _ in counts}):
        own = [key for key in counts if key[0] == rank]
        going = [key for key in own if key not in run.ends]
        made[rank] = counts[(going or own)[-1]]
    return made


def is_gone(run: Run, process: str) -> bool:
    """Whether a process was on this machine and is there no more."""
    if run.meta.get("host") != socket.gethostname():
        return False
    try:
        os.kill(int(process.partition("x")[0], 16), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return False
