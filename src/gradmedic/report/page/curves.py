"""Curves of at most a few thousand points that keep every extreme of the tens of thousands behind them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: No curve has more points than this.
MOST_POINTS = 3000
#: A curve of which at least this share is known has gaps where it is not; below it, it was only measured now and then.
_DENSE = 0.5


def kept_points(values: npt.ArrayLike, parts: npt.ArrayLike | None = None, most: int = MOST_POINTS) -> Integers:
    """Return which points of a curve are drawn.

    A curve of at most `most` known points stays whole. Otherwise its finite values are cut into buckets of equal
    numbers of points, each of which keeps its least and its greatest one; the first and the last point stay, and so do
    those that are not finite (beyond a third of `most` of them, the first and the last of each stretch of the curve).
    Where a curve that is otherwise known has a gap, and where another process began, one NaN breaks the line.

    Args:
        values: [S], NaN where nothing is known, infinite where not finite.
        parts: which process made each step [S]; one by default.
        most: number of points, >= 30.

    Returns:
        Increasing places [N <= most] in `values`; those of unknown values break the line there.

    Example:
        >>> kept_points([1.0, np.nan, 2.0, 3.0]).tolist()
        [0, 1, 2, 3]
    """
    curve = np.asarray(values, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(curve))
    if not len(known):
        return known
    breaks = _breaks(curve, known, np.zeros(len(curve)) if parts is None else np.asarray(parts), most // 10)
    room = most - len(breaks)
    if len(known) > room:
        finite = known[np.isfinite(curve[known])]
        odd = _thin(known[~np.isfinite(curve[known])], room // 3)
        ends = np.array([known[0], known[-1]])
        known = np.unique(np.concatenate([ends, odd, _extremes(curve, finite, room - len(odd) - 2)]))
    return np.unique(np.concatenate([known, breaks]))


def _extremes(curve: Floats, places: Integers, room: int) -> Integers:
    """Return the places of the least and the greatest value of each of room / 2 buckets."""
    if len(places) <= room:
        return places
    edges = np.linspace(0, len(places), max(1, room // 2) + 1).astype(np.int64)
    sizes = np.diff(edges)
    padded = np.minimum(edges[:-1, None] + np.arange(sizes.max())[None, :], edges[1:, None] - 1)
    values = curve[places[padded]]
    rows = np.arange(len(padded))
    found: Integers = places[np.concatenate([padded[rows, values.argmin(axis=1)], padded[rows, values.argmax(axis=1)]])]
    return found


def _thin(places: Integers, room: int) -> Integers:
    """Return at most `room` places, the first and the last of stretches of equal number."""
    if len(places) <= room:
        return places
    edges = np.linspace(0, len(places), max(1, room // 2) + 1).astype(np.int64)
    return np.unique(places[np.concatenate([edges[:-1], edges[1:] - 1])])


def _breaks(curve: Floats, known: Integers, parts: npt.NDArray[np.float64], room: int) -> Integers:
    """Return one unknown place in each gap between known ones, none where there are too many of them."""
    found = np.zeros(0, dtype=np.int64)
    inside = slice(int(known[0]), int(known[-1]) + 1)
    if len(known) >= _DENSE * (inside.stop - inside.start):
        gaps = known[:-1][np.diff(known) > 1] + 1
        found = gaps if len(gaps) <= room else found
    changed = np.flatnonzero(np.diff(parts[inside]) != 0) + inside.start + 1
    changed = changed[np.isnan(curve[changed])]
    return np.unique(np.concatenate([found, changed[:room]])).astype(np.int64)
