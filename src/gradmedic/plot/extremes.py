"""Values at the end of what a double can hold: matplotlib adds margins to them, subtracts them, and breaks.

A run that explodes has losses and norms of 1e300; its figure is the one that is looked at most. Such values get a
logarithmic axis (linear around zero where some are negative) whose limits are set by hand, within the doubles.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from gradmedic.record.arrays import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Beyond these sizes margins are no longer left to matplotlib: those of a logarithmic axis are 5 % of its decades.
HUGE, _TINY = 1e100, 1e-100
_LARGEST, _SMALLEST = sys.float_info.max, sys.float_info.min
#: Factor between the outermost values and the edge of the axes.
_AIR = 3.0
_TICKS = 7


def bear_extremes(ax: Axes, parts: Iterable[Array]) -> None:
    """Give the y axis a scale and limits that extreme values fit; ordinary values change nothing.

    Args:
        ax: with its scale set, and before or after the values are drawn.
        parts: all that is drawn along y, of any shape; what is not finite is left out.
    """
    values = np.concatenate([np.zeros(0), *(np.ravel(part) for part in parts)])
    values = values[np.isfinite(values)]
    if not len(values):
        return
    is_log = ax.get_yscale() == "log"
    sizes = np.abs(values)
    positive = sizes[sizes > 0]
    tiny = is_log and len(positive) > 0 and positive.min() < _TINY
    if sizes.max() <= HUGE and not tiny:
        return
    if is_log or values.min() > 0:
        if not is_log:
            ax.set_yscale("log", nonpositive="mask")
        _set_log_limits(ax, *log_limits(values))
    else:
        _set_both_ways(ax, float(values.min()), float(values.max()))


def set_log_limits(ax: Axes, values: Array) -> None:
    """Set the limits of a logarithmic y axis for values of which some are above zero."""
    low, high = log_limits(values)
    if low < _TINY or high > HUGE:
        _set_log_limits(ax, low, high)
    else:
        ax.set_ylim(low, high)


def _set_log_limits(ax: Axes, low: float, high: float) -> None:
    """Set limits, and ticks of our own: matplotlib's locator looks beyond them, where there is no power of ten."""
    ax.set_ylim(low, high)
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    apart = max(1, -(-(last - first) // _TICKS))
    _set_ticks(ax, [10.0**each for each in range(first, last + 1) if each % apart == 0])


def _set_both_ways(ax: Axes, low: float, high: float) -> None:
    """Set an axis that is logarithmic above 1 and below -1, and linear between."""
    ax.set_yscale("symlog", linthresh=1.0)
    ax.set_ylim(_bounded(min(-1.0, low * _AIR)), _bounded(max(1.0, high * _AIR)))
    decades = {sign: math.floor(math.log10(max(1.0, sign * end))) for sign, end in ((-1, low), (1, high))}
    apart = max(1, -(-sum(decades.values()) // _TICKS))
    ticks = [sign * 10.0**each for sign, last in decades.items() for each in range(apart, last + 1, apart)]
    _set_ticks(ax, [*ticks, 0.0])


def _set_ticks(ax: Axes, ticks: list[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ax.yaxis.set_major_locator(FixedLocator(sorted(ticks)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))


def _power(value: float) -> str:
    if value == 0:
        return "0"
    return rf"$\mathdefault{{{'-' if value < 0 else ''}10^{{{round(math.log10(abs(value)))}}}}}$"


def log_limits(values: Array) -> tuple[float, float]:
    """Return limits of a logarithmic axis for values of which some are above zero; they stay within the doubles.

    Example:
        >>> log_limits(np.array([0.0, 3.0, 10.0]))
        (1.0, 30.0)
    """
    positive = values[np.isfinite(values) & (values > 0)]
    low = max(float(positive.min()) / _AIR, _SMALLEST)
    return low, max(_bounded(float(positive.max()) * _AIR), 2 * low)


def _bounded(value: float) -> float:
    return min(_LARGEST, max(-_LARGEST, value))
