"""Colours of the figures: told apart by people who see red and green alike, on light and dark ground."""

from __future__ import annotations

#: For series that stand beside each other (Okabe and Ito, "Color Universal Design", 2008, without yellow and black).
SERIES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7a68a6", "#8c8c8c")

MAIN = "#0072b2"
LIGHT = "#9ecae8"
AFTER = "#e69f00"
THRESHOLD = "#d55e00"
RATE = "#8c8c8c"
NONFINITE = "#e0007f"
SKIPPED = "#7a3db8"
CLIPPED = "#e69f00"
ZERO = "#20242b"
ABSENT = "#c9ccd1"
NO_GRADIENT = "#a88a6a"
FADED = "#8c8c8c"

SEVERITY = {"info": "#56b4e9", "warning": "#e69f00", "error": "#d55e00", "critical": "#b3003c"}

#: Of a heatmap: perceptually even, and readable in grey.
COLORMAP = "viridis"


def series_style(index: int) -> dict[str, object]:
    """Return colour and line style of the nth series: after the colours are used up, dashes tell them apart."""
    return {
        "color": SERIES[index % len(SERIES)],
        "linestyle": ("-", "--", ":", "-.")[index // len(SERIES) % 4],
    }
