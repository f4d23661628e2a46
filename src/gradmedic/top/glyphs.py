"""Signs that stand for numbers, in Unicode or in ASCII, and names made safe to print."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from rich.cells import cell_len

from gradmedic.record.arrays import Array


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What a terminal can show.

    Attributes:
        ramp: signs from the lowest to the highest level.
        nonfinite, missing, zero: for what is recorded as not finite, not recorded, and exactly zero.
        cut: stands where a text was cut off.
        arrow, up_down, dash: between first and last; the keys that scroll; between two ends.
    """

    ramp: str
    nonfinite: str
    missing: str
    zero: str
    cut: str
    arrow: str
    up_down: str
    dash: str


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "!", " ", "0", "…", "→", "↑↓", "–")
ASCII = Glyphs("_.,-~=*#", "!", " ", "0", "~", "->", "up/down", "-")

#: Levels of one sign: 0 to 7, then these.
NONFINITE, MISSING, ZERO = 8, 9, 10


def glyphs_for(encoding: str | None, term: str = "") -> Glyphs:
    """Return the signs that a terminal can show.

    Args:
        encoding: of its output.
        term: its TERM; the kinds before Unicode get ASCII whatever the encoding says.
    """
    if term.startswith(("vt", "dumb", "ansi")):
        return ASCII
    try:
        "".join((UNICODE.ramp, UNICODE.cut, UNICODE.arrow, UNICODE.up_down, UNICODE.dash)).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def cut_left(text: str, width: int, glyphs: Glyphs) -> str:
    """Return a text at most `width` cells wide, cut at its beginning: the end of a name says more."""
    if cell_len(text) <= width:
        return text
    kept = ""
    for sign in reversed(text):
        if cell_len(sign + kept) > width - len(glyphs.cut):
            break
        kept = sign + kept
    return (glyphs.cut + kept)[: max(0, width)] if width > 0 else ""


def cut_right(text: str, width: int, glyphs: Glyphs) -> str:
    """Return a text at most `width` cells wide, cut at its end."""
    if cell_len(text) <= width:
        return text
    kept = ""
    for sign in text:
        if cell_len(kept + sign) > width - len(glyphs.cut):
            break
        kept += sign
    return kept + glyphs.cut if width > 0 else ""


def padded(text: str, width: int) -> str:
    """Return a text filled up with spaces to `width` cells."""
    return text + " " * (width - cell_len(text))


def bucketed(values: Array, width: int, *, log: bool) -> Array:
    """Return at most `width` values of a series: from each stretch the one farthest from the median of all.

    Spikes so stay visible however long the run. What is not finite goes before all others.

    Args:
        values: [S], NaN where not recorded, infinite where not finite.
        width: at least 1.
        log: whether distance is that of logarithms.
    """
    if len(values) <= width:
        return values
    scaled = _scaled(values, log)
    finite = np.isfinite(scaled)
    centre = float(np.median(scaled[finite])) if finite.any() else 0.0
    distance = np.full(len(values), np.finfo(float).max)  # zero or less, on a scale of logarithms
    distance[finite] = np.abs(scaled[finite] / 2 - centre / 2)
    distance[np.isinf(values)] = np.inf
    distance[np.isnan(values)] = -1.0
    edges = np.linspace(0, len(values), width + 1).astype(int)
    places = [start + int(distance[start:stop].argmax()) for start, stop in pairwise(edges.tolist())]
    chosen: Array = values[places]
    return chosen


def levels(values: Array, low: float, high: float, *, log: bool) -> Array:
    """Return the level of each value: 0 to 7 between `low` and `high`, else NONFINITE, MISSING, or ZERO (in log).

    Args:
        values: any shape; NaN where not recorded, infinite where not finite.
        low, high: the ends of the scale; a scale without extent puts everything in the middle.
        log: whether the scale is one of logarithms.
    """
    scaled = _scaled(values, log)
    start, stop = (_scaled(np.array([low, high]), log)).tolist()
    made = np.full(values.shape, 3, dtype=np.int64)
    inside = np.isfinite(scaled)
    if stop > start:
        # Halves first: a scale may be as wide as float64 itself.
        place = 8 * ((scaled[inside] / 2 - start / 2) / (stop / 2 - start / 2))
        made[inside] = np.clip(place, 0, 7).astype(np.int64)
    if log:
        made[values == 0] = ZERO
    made[np.isinf(values)] = NONFINITE
    made[np.isnan(values)] = MISSING
    return made


def signs(made: Array, glyphs: Glyphs) -> str:
    """Return the signs of levels [N]."""
    table = glyphs.ramp + glyphs.nonfinite + glyphs.missing + glyphs.zero
    return "".join(table[level] for level in made.tolist())


def _scaled(values: Array, log: bool) -> Array:
    if not log:
        return values
    scaled: Array = np.where(values > 0, np.log10(np.where(values > 0, values, 1.0)), np.nan)
    return scaled
