"""Intervals: Wilson's for shares, the bootstrap for everything else. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Z95 = 1.959964
ROUNDS = 4000
Array = npt.NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


def wilson(successes: int, trials: int) -> Interval:
    """Return a share with Wilson's score interval (1927), which stays within [0, 1] and is not empty at 0 and 1."""
    if trials == 0:
        return Interval(math.nan, 0.0, 1.0)
    share, square = successes / trials, Z95**2 / trials
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(share * (1 - share) * square + square**2 / 4) / (1 + square)
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def bootstrap(groups: Sequence[Array], statistic: Callable[[Array], float]) -> Interval:
    """Return a statistic of rows, with the percentile bootstrap over groups of rows that are not independent.

    Args:
        groups: one array [n_i, columns] for each independent unit, here a task and seed.
        statistic: of an array [n, columns].
    """
    filled = [group for group in groups if len(group)]
    if not filled:
        return Interval(math.nan, math.nan, math.nan)
    rng = np.random.default_rng(0)
    draws = rng.integers(len(filled), size=(ROUNDS, len(filled)))
    found = [statistic(np.concatenate([filled[at] for at in draw])) for draw in draws]
    low, high = np.quantile(found, [0.025, 0.975])
    return Interval(statistic(np.concatenate(filled)), float(low), float(high))


def mean(rows: Array) -> float:
    """Return the mean of the first column."""
    return float(rows[:, 0].mean())


def ratio(rows: Array) -> float:
    """Return the sum of the first column over that of the second."""
    return float(rows[:, 0].sum() / rows[:, 1].sum())
