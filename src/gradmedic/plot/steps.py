"""Which steps a figure shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from gradmedic.errors import InputError
from gradmedic.record.arrays import Array

#: None (all), one step, a slice or range of steps, or several of them. A negative step counts from the last one.
Steps: TypeAlias = "int | slice | range | Iterable[int] | None"


def chosen_steps(recorded: Array, steps: Steps) -> Array:
    """Return which of the recorded steps [S] are asked for, bool [S].

    Args:
        recorded: indices of the recorded steps; those of a restart may repeat earlier ones.
        steps: None for all; a step; `slice(100, 200)` or `range(100, 200)`, by step index, as slices of lists work:
            `slice(-50, None)` are the last 50; or several steps.

    Raises:
        InputError: it is none of these.

    Example:
        >>> chosen_steps(np.array([0, 5, 10]), slice(-6, None)).tolist()
        [False, True, True]
    """
    if steps is None or not len(recorded):
        return np.ones(len(recorded), dtype=bool)
    after_last = int(recorded.max()) + 1
    if isinstance(steps, slice):
        try:
            steps = range(*steps.indices(after_last))
        except (TypeError, ValueError) as error:
            raise InputError(f"steps must be a slice of whole numbers, got {steps!r}") from error
    elif isinstance(steps, (int, np.integer)) and not isinstance(steps, bool):
        steps = (int(steps),)
    elif isinstance(steps, (str, bytes)) or not isinstance(steps, Iterable):
        raise InputError(f"steps must be None, a step, a slice or range of steps, or several of them, got {steps!r}")
    wanted = list(steps)
    if not all(isinstance(each, (int, np.integer)) for each in wanted):
        raise InputError(f"steps must be whole numbers, got {wanted[:8]!r}")
    places = np.array(wanted, dtype=np.int64)
    return np.isin(recorded, np.where(places < 0, places + after_last, places))


def nearest(recorded: Array, steps: Iterable[int]) -> list[int]:
    """Return, for each step, the place in `recorded` [S >= 1] of the step nearest to it; each place once, in order."""
    return sorted({int(np.abs(recorded - step).argmin()) for step in steps})


def spread(count: int, wanted: int) -> list[int]:
    """Return `wanted` places of `count`, evenly spaced, the first and the last among them.

    Example:
        >>> spread(10, 3)
        [0, 4, 9]
    """
    if count <= wanted:
        return list(range(count))
    return sorted({round(float(place)) for place in np.linspace(0, count - 1, wanted)})
