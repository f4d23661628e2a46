"""Curves over steps that hide nothing: gaps stay gaps, restarts begin anew, NaN and infinities stand at the edge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gradmedic.plot.extremes import bear_extremes
from gradmedic.plot.style import NONFINITE, SKIPPED
from gradmedic.record.arrays import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.lines import Line2D

#: Points that a curve keeps; more cannot be told apart on any screen.
_POINTS = 4000
#: Within these bounds, and below this ratio of the largest to the smallest value, plain numbers read best.
_PLAIN_BOUNDS, _PLAIN_RATIO = (1e-4, 1e5), 1e4


def curve(ax: Axes, steps: Array, values: Array, **style: Any) -> Line2D:
    """Draw values [S] over steps [S]; a non-finite value is a gap, and so is the seam to a restart."""
    steps, values = thinned(*broken_at_restarts(steps, np.where(np.isfinite(values), values, np.nan)))
    (line,) = ax.plot(steps, values, **{"linewidth": 1.2, **style})
    _dot_lonely(ax, line, steps, values)
    return line


def broken_at_restarts(steps: Array, values: Array) -> tuple[Array, Array]:
    """Return both with a NaN put in wherever steps do not count up: a process that began anew."""
    seams = np.flatnonzero(np.diff(steps) <= 0) + 1
    return np.insert(steps.astype(np.float64), seams, np.nan), np.insert(values, seams, np.nan)


def thinned(steps: Array, values: Array, points: int = _POINTS) -> tuple[Array, Array]:
    """Return at most about `points` of the points of a curve: of each stretch the lowest and the highest, and its gaps.

    Example:
        >>> kept, _ = thinned(np.arange(1000.0), np.sin(np.arange(1000.0)), 100)
        >>> len(kept) <= 100
        True
    """
    if len(steps) <= points:
        return steps, values
    size = -(-len(steps) // max(1, points // 4))
    keep: set[int] = {0, len(steps) - 1}
    for start in range(0, len(steps), size):
        stretch = values[start : start + size]
        gaps = np.isnan(stretch)
        if not gaps.all():
            keep |= {start + int(np.nanargmin(stretch)), start + int(np.nanargmax(stretch))}
        if gaps.any():
            keep |= {start + int(gaps.argmax()), start + len(gaps) - 1 - int(gaps[::-1].argmax())}
    places = np.array(sorted(keep))
    return steps[places], values[places]


def at_top(ax: Axes, places: Array, label: str | None = None, *, color: str = NONFINITE) -> Any:
    """Mark places on the x axis with a cross at the upper edge: what was there is no number."""
    return _at_edge(ax, places, 0.985, marker="x", color=color, label=label)


def at_bottom(ax: Axes, places: Array, label: str | None = None, *, marker: str = "v", color: str = SKIPPED) -> Any:
    """Mark places on the x axis at the lower edge: what was there cannot be on a logarithmic scale."""
    return _at_edge(ax, places, 0.02, marker=marker, color=color, label=label)


def _at_edge(ax: Axes, places: Array, height: float, **style: Any) -> Any:
    (line,) = ax.plot(
        places,
        np.full(len(places), height),
        transform=ax.get_xaxis_transform(),
        linestyle="none",
        markersize=5,
        clip_on=False,
        zorder=5,
        **style,
    )
    return line


def ticks_along(ax: Axes, places: Array, row: int, *, color: str, label: str | None = None) -> Any:
    """Mark steps with short strokes in a row along the lower edge, row 0 lowest."""
    return _at_edge(ax, places, 0.02 + 0.04 * row, marker="|", color=color, label=label, markeredgewidth=1.0)


def _dot_lonely(ax: Axes, line: Line2D, steps: Array, values: Array) -> None:
    """Give a point whose neighbours are gaps a dot: a line through one point is invisible."""
    known = np.isfinite(values)
    before, after = np.r_[False, known[:-1]], np.r_[known[1:], False]
    lonely = known & ~before & ~after
    if lonely.any():
        ax.plot(steps[lonely], values[lonely], ".", color=line.get_color(), markersize=4, zorder=line.get_zorder())


def log_if_positive(ax: Axes, parts: Iterable[Array]) -> bool:
    """Set a logarithmic y axis where there are positive values and none below zero; return whether it was set."""
    values = np.concatenate([np.zeros(0), *(np.ravel(part) for part in parts)])
    finite = values[np.isfinite(values)]
    if not len(finite) or finite.min() < 0 or finite.max() <= 0:
        return False
    ax.set_yscale("log", nonpositive="mask")
    _plain_if_short(ax.yaxis, float(finite[finite > 0].min()), float(finite.max()))
    bear_extremes(ax, [finite])
    return True


def plain_log_ticks_if_short(ax: Axes) -> None:
    """Write the ticks of a logarithmic y axis as plain numbers where it spans few decades."""
    low, high = ax.get_ylim()
    if ax.get_yscale() == "log":
        _plain_if_short(ax.yaxis, float(low), float(high))


def _plain_if_short(axis: Axis, low: float, high: float) -> None:
    if low > 0 and high / low < _PLAIN_RATIO and low > _PLAIN_BOUNDS[0] and high < _PLAIN_BOUNDS[1]:
        _plain_log_ticks(axis)


def _plain_log_ticks(axis: Axis) -> None:
    """Write the ticks of a short logarithmic axis as 0.3 and 20, not as powers."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, value: float, position: int | None = None) -> str:
            return f"{value:.10g}" if super().__call__(value, position) else ""

    axis.set_major_formatter(Plain())
    axis.set_minor_formatter(Plain(labelOnlyBase=False, minor_thresholds=(2, 0.4)))
