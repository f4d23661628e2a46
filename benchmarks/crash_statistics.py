"""Exact intervals for counts: Garwood's for a rate, Clopper and Pearson's for the ratio of two. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable

from stability_statistics import Interval


def poisson_cdf(count: int, mean: float) -> float:
    """Return the probability of at most `count` events where `mean` are expected."""
    if mean == 0:
        return 1.0
    return min(1.0, sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1)))


def binomial_cdf(count: int, trials: int, share: float) -> float:
    """Return the probability of at most `count` successes of so many trials."""
    return min(1.0, sum(math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(count + 1)))


def solve(falling: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Return where a falling function reaches the target, by bisection."""
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > target else (low, middle)
    return (low + high) / 2


def poisson_mean(count: int) -> Interval:
    """Return the mean that a count speaks for, with Garwood's interval (1936)."""
    top = 4 * count + 20.0
    low = 0.0 if count == 0 else solve(lambda mean: poisson_cdf(count - 1, mean), 0.975, 0.0, top)
    return Interval(float(count), low, solve(lambda mean: poisson_cdf(count, mean), 0.025, 0.0, top))


def per_10_000(count: int, steps: int) -> Interval:
    """Return a rate per 10,000 steps."""
    return Interval(*(each * 10_000 / steps for each in poisson_mean(count)))


def rate_ratio(count: int, steps: int, other: int, other_steps: int) -> Interval:
    """Return the ratio of two Poisson rates, the first over the second, with the exact conditional interval.

    Given the sum of both counts the first is binomial with a share that only depends on the ratio of the rates.
    """
    total = count + other
    if total == 0:
        return Interval(math.nan, 0.0, math.inf)
    low = 0.0 if count == 0 else solve(lambda share: binomial_cdf(count - 1, total, share), 0.975, 0.0, 1.0)
    high = 1.0 if other == 0 else solve(lambda share: binomial_cdf(count, total, share), 0.025, 0.0, 1.0)
    exposure = other_steps / steps

    def ratio(share: float) -> float:
        return math.inf if share == 1 else share / (1 - share) * exposure

    return Interval(math.inf if other == 0 else count / other * exposure, ratio(low), ratio(high))
