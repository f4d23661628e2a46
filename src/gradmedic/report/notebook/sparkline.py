"""A small curve as inline SVG: the course of a number over a run, spikes and non-finite values included."""

from __future__ import annotations

import html

import numpy as np

from gradmedic.record.arrays import Array
from gradmedic.report.notebook.markup import BROKEN

_WIDTH, _HEIGHT, _EDGE = 240, 44, 4
#: Points across; each shows the lowest and the highest of its stretch.
_COLUMNS = 120


def sparkline(values: Array, title: str, color: str = "#3f87c7") -> str:
    """Return an SVG picture of values in order.

    Args:
        values: [S]; NaN leaves a gap, infinity (what was measured is not finite) makes a cross at the upper edge.
        title: what a screen reader says.
        color: of the line.

    Returns:
        HTML, or "" where there is nothing to show. The scale is logarithmic where the values span a factor of 30.
    """
    known = values[np.isfinite(values)]
    if not len(known) and not np.isinf(values).any():
        return ""
    scaled, low, high = _scaled(values, known)
    parts = np.array_split(np.arange(len(values)), min(_COLUMNS, len(values)))
    step = (_WIDTH - 2 * _EDGE) / max(1, len(parts) - 1)
    path, crosses, pen_down = [], [], False
    for at, part in enumerate(parts):
        x = _EDGE + at * step
        stretch = scaled[part]
        if np.isinf(stretch).any():
            crosses.append(f"M{x - 2:.1f} 2l4 4m0 -4l-4 4")
        finite = stretch[np.isfinite(stretch)]
        if not len(finite):
            pen_down = False
            continue
        ends = [_y(value, low, high) for value in dict.fromkeys((finite.min(), finite.max()))]
        path += [f"{'L' if pen_down or index else 'M'}{x:.1f} {y:.1f}" for index, y in enumerate(ends)]
        if not pen_down and len(ends) == 1:
            path.append("h.1")  # a point by itself
        pen_down = True
    marks = f'<path d="{"".join(crosses)}" stroke="{BROKEN}" stroke-width="1.4" fill="none"/>' if crosses else ""
    label = html.escape(title)
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}" '
        f'style="vertical-align:middle"><path d="{"".join(path)}" fill="none" stroke="{color}" stroke-width="1.3" '
        f'stroke-linejoin="round" stroke-linecap="round"/>{marks}</svg>'
    )


def _scaled(values: Array, known: Array) -> tuple[Array, float, float]:
    scaled = values.astype(np.float64)
    if len(known) and known.min() > 0 and known.max() / 30 > known.min():
        scaled = np.where(np.isfinite(scaled), np.log10(np.where(scaled > 0, scaled, 1.0)), scaled)
    finite = scaled[np.isfinite(scaled)]
    if not len(finite):
        return scaled, 0.0, 1.0
    return scaled, float(finite.min()), float(finite.max())


def _y(value: float, low: float, high: float) -> float:
    # Halves first: the values may lie as far apart as doubles can.
    share = (value / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.5
    return _HEIGHT - _EDGE - share * (_HEIGHT - 2 * _EDGE - 4)
