"""Exact tests on few runs: whether a fault does harm, and how often a healthy run may alarm. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

#: Above so many ways to share out the ranks the normal approximation is taken.
MAX_EXACT = 200_000


def midranks(values: Sequence[float]) -> list[float]:
    """Return the ranks from 1 on; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=lambda at: values[at])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for at in order[start : end + 1]:
            ranks[at] = (start + end) / 2 + 1
        start = end + 1
    return ranks


def less_than(small: Sequence[float], large: Sequence[float]) -> float:
    """Return the one-sided p-value for `small` being stochastically smaller than `large`.

    The permutation distribution of the rank sum (Mann-Whitney with midranks, so ties are exact); its normal
    approximation with tie correction where there are more than 200,000 permutations.

    Args:
        small, large: numbers; infinities are ranked as such, NaN is not allowed.

    Returns:
        The probability of a rank sum of `small` that is no larger, if both came from one distribution; 1.0 where one
        side is empty.
    """
    n, m = len(small), len(large)
    if not n or not m:
        return 1.0
    ranks = midranks([*small, *large])
    observed = sum(ranks[:n])
    if math.comb(n + m, n) > MAX_EXACT:
        return _normal(ranks, n, observed)
    sums = [sum(chosen) for chosen in combinations(ranks, n)]
    return sum(total <= observed + 1e-9 for total in sums) / len(sums)


def _normal(ranks: Sequence[float], n: int, observed: float) -> float:
    size = len(ranks)
    mean = n * (size + 1) / 2
    middle = (size + 1) / 2
    spread = sum((rank - middle) ** 2 for rank in ranks) / (size - 1)
    variance = n * (size - n) / size * spread
    if variance == 0:
        return 1.0
    return 0.5 * math.erfc(-(observed + 0.5 - mean) / math.sqrt(2 * variance))


def upper_bound(count: int, trials: int, level: float = 0.95) -> float:
    """Return the one-sided Clopper-Pearson upper bound of a share.

    Args:
        count: successes.
        trials: independent trials.
        level: of confidence.

    Returns:
        The share at which so few successes have the probability 1 - level; 1.0 without trials. With no success it is
        1 - (1 - level)^(1 / trials), about 3 / trials.
    """
    if count >= trials:
        return 1.0
    low, high = count / trials, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if _cumulative(count, trials, middle) > 1 - level:
            low = middle
        else:
            high = middle
    return high


def _cumulative(count: int, trials: int, share: float) -> float:
    """Return the probability of at most `count` successes, by logarithms: thousands of trials do not overflow."""
    if share <= 0:
        return 1.0
    if share >= 1:
        return float(count >= trials)
    total = 0.0
    for k in range(count + 1):
        log_ways = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        total += math.exp(log_ways + k * math.log(share) + (trials - k) * math.log1p(-share))
    return min(1.0, total)
