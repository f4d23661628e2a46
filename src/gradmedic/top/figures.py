"""Numbers as they stand in a line of the screen, short and of bounded width."""

from __future__ import annotations

import math

from gradmedic.diagnosis import wording


def number(value: float) -> str:
    """Return a number with three digits; a dash where it is not recorded."""
    return "-" if math.isnan(value) else short(wording.number(value))


def short(text: str) -> str:
    """Return a number's text with its exponent as short as it can be: "1e-08" is "1e-8"."""
    mantissa, sign, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if sign else text


def seconds(value: float) -> str:
    """Return a time as "12 s", "3 min", "2 h", "250 ms" or "40 us"."""
    if not math.isfinite(value):
        return "?"
    for unit, size, least in (("d", 86400.0, 2.0), ("h", 3600.0, 2.0), ("min", 60.0, 2.0)):
        if value >= least * size:
            return f"{value / size:.0f} {unit}"
    if value >= 1:
        return f"{value:.3g} s" if value < 10 else f"{value:.0f} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.0f} us"


def share(value: float) -> str:
    """Return a share as percent of at most four characters; a dash where it is not known."""
    if math.isnan(value):
        return "-"
    percent = 100 * value
    if percent and percent < 0.1:
        return "<.1%"
    return f"{percent:.0f}%" if percent >= 9.95 or percent in (0.0,) else f"{percent:.1f}%"
