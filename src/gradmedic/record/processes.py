"""Which of several processes that trained one after the other came first, whatever their clocks said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: Rank and name of a process.
Key = tuple[int, str]


def attempts_of(metas: Iterable[Mapping[str, Any]]) -> dict[Key, int]:
    """Return by process how many of its rank had trained into the folder before it, as its run file says."""
    found: dict[Key, int] = {}
    for meta in metas:
        rank, process, attempt = (meta.get(name) for name in ("rank", "process", "attempt"))
        if isinstance(rank, int) and isinstance(process, str) and isinstance(attempt, int):
            found[rank, process] = attempt
    return found


def in_order_of_beginning(begun: Mapping[Key, float], attempts: Mapping[Key, int]) -> list[Key]:
    """Return processes in the order in which they began to train.

    Args:
        begun: unix seconds of the first step of each.
        attempts: how many had trained before it; a clock that was set back between a crash and a restart does not
            change that. Forked processes and records of older versions have none: their clock is all there is.

    Example:
        >>> in_order_of_beginning({(0, "a"): 50.0, (0, "b"): 20.0}, {(0, "a"): 0, (0, "b"): 1})
        [(0, 'a'), (0, 'b')]
    """
    known = {key: attempts[key] for key in begun if key in attempts}

    def place(key: Key) -> tuple[int, float]:
        if key in known:
            return known[key], begun[key]
        return max((attempt for each, attempt in known.items() if begun[each] <= begun[key]), default=0), begun[key]

    return sorted(begun, key=place)
