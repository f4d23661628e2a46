"""Quantiles of gradient magnitudes, out of the log2 histograms that the record keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gradmedic.report.views.source import Floats
from gradmedic.types import HISTOGRAM_BINS, HISTOGRAM_FIRST_EXPONENT


def quantiles_of(
    log2_hist: npt.ArrayLike,
    q: Sequence[float],
    minimum: npt.ArrayLike | None = None,
    maximum: npt.ArrayLike | None = None,
) -> Floats:
    """Return quantiles of |g| over the finite elements that are not zero.

    Within a bin the elements are taken to lie evenly on a logarithmic scale, so that the error is below a factor of 2
    (the width of a bin). The end bins, which gather what lies beyond, end at `minimum` and `maximum` where given.

    Args:
        log2_hist: counts [..., 64]; bin k holds 2^(k-48) <= |g| < 2^(k-47).
        q: shares in [0, 1].
        minimum, maximum: of |g| [...]; zero or NaN where not known.

    Returns:
        [..., len(q)] float64, NaN where a histogram is empty.

    Example:
        >>> counts = np.zeros(64); counts[48] = 3  # between 1 and 2
        >>> quantiles_of(counts, [0.0, 0.5], minimum=1.0, maximum=1.5).round(3).tolist()
        [1.0, 1.225]
    """
    counts = np.asarray(log2_hist, dtype=np.float64)
    lead = counts.shape[:-1]
    counts = counts.reshape(-1, HISTOGRAM_BINS)
    low, high = (_bounds(given, lead) for given in (minimum, maximum))
    below = np.cumsum(counts, axis=1)
    total = below[:, -1]
    made = np.full((len(counts), len(q)), np.nan)
    rows = np.flatnonzero(total > 0)
    for at, share in enumerate(q):
        # Element i of n stands at (i + 1/2) / n within its bin; share 0 is the first one, share 1 the last.
        rank = share * (total[rows] - 1)
        place = np.minimum((below[rows] <= rank[:, None]).sum(axis=1), HISTOGRAM_BINS - 1)
        inside = counts[rows, place]
        first = below[rows, place] - inside
        part = np.clip((rank - first + 0.5) / np.maximum(inside, 1.0), 0.0, 1.0)
        made[rows, at] = _between(place, part, low[rows], high[rows])
    made = np.fmin(np.fmax(made, np.where(low > 0, low, np.nan)[:, None]), np.where(high > 0, high, np.nan)[:, None])
    made[total <= 0] = np.nan
    for share, bound in ((0.0, low), (1.0, high)):
        columns = [at for at, each in enumerate(q) if each == share]
        known = (total > 0) & (bound > 0)
        for at in columns:
            made[known, at] = bound[known]
    shaped: Floats = made.reshape(*lead, len(q))
    return shaped


def _between(place: npt.NDArray[np.int64], part: Floats, low: Floats, high: Floats) -> Floats:
    lower = place + float(HISTOGRAM_FIRST_EXPONENT)
    upper = lower + 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        least, most = np.log2(low), np.log2(high)
    lower = np.where((least > lower) & (least < upper), least, lower)
    lower = np.where((place == 0) & np.isfinite(least) & (least < upper), least, lower)
    upper = np.where((most > lower) & (most < upper), most, upper)
    upper = np.where((place == HISTOGRAM_BINS - 1) & np.isfinite(most) & (most > lower), most, upper)
    inside: Floats = np.exp2(lower + part * (upper - lower))
    return inside


def _bounds(given: npt.ArrayLike | None, lead: tuple[int, ...]) -> Floats:
    if given is None:
        return np.full(int(np.prod(lead, dtype=np.int64)), np.nan)
    bounds = np.broadcast_to(np.asarray(given, dtype=np.float64), lead).reshape(-1)
    usable: Floats = np.where(np.isfinite(bounds) & (bounds > 0), bounds, np.nan)
    return usable
