"""How the pre-clip norm goes with the learning rate, and how far it drifts."""

from __future__ import annotations

import numpy as np

from gradmedic.clip.trial.results import RateLink
from gradmedic.frame import Array

#: Steps of the moving window: a tenth of the run, within these bounds.
SHORTEST, LONGEST = 20, 200
#: Least relative spread of learning rates in a window that has a correlation.
_LEAST_CHANGE = 1e-6


def link_rates(step: Array, lr: Array, norm: Array) -> RateLink:
    """Return how norm and learning rate go together.

    Args:
        step: indices, [S].
        lr: learning rates, [S]; NaN where not known.
        norm: pre-clip norms, finite and > 0, [S].
    """
    there = np.isfinite(lr) & (np.nan_to_num(lr) > 0)
    if there.sum() < SHORTEST:
        return RateLink()
    step, rates, norms = step[there], np.log(lr[there]), np.log(norm[there])
    span = float(np.exp(rates.max() - rates.min()))
    if span - 1 < _LEAST_CHANGE:
        return RateLink(span=span)
    window = int(np.clip(len(step) // 10, SHORTEST, LONGEST))
    ends, values = [], []
    for stop in range(window, len(step) + 1, max(1, window // 2)):
        value = pearson(rates[stop - window : stop], norms[stop - window : stop])
        if value is not None:
            ends.append(int(step[stop - 1]))
            values.append(value)
    low, high = np.quantile(rates, [1 / 3, 2 / 3])
    level = float(np.exp(np.median(norms[rates >= high]) - np.median(norms[rates <= low])))
    whole = pearson(_ranks(rates), _ranks(norms))
    return RateLink(window, tuple(ends), tuple(values), whole, span, level)


def drift_of(norm: Array) -> float | None:
    """Return the highest of the medians of a series' three thirds over the lowest; None below 30 steps."""
    if len(norm) < 30:
        return None
    medians = [float(np.median(part)) for part in np.array_split(norm, 3)]
    return max(medians) / min(medians)


def pearson(one: Array, other: Array) -> float | None:
    """Return Pearson's correlation in [-1, 1]; None where either stands still."""
    one, other = one - one.mean(), other - other.mean()
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    still = np.abs(one).max() < _LEAST_CHANGE or np.abs(other).max() < _LEAST_CHANGE
    return None if still or size == 0 else float(np.clip((one * other).sum() / size, -1.0, 1.0))


def _ranks(values: Array) -> Array:
    """Return ranks; those of equal values are their mean, as Spearman has it."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means = ends - (counts - 1) / 2.0
    ranks: Array = means[inverse.reshape(-1)]
    return ranks
