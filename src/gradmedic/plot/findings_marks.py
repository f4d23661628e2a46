"""Findings on a time axis: a line where each begins, with its number, and what it is in the legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradmedic.diagnosis import Finding
from gradmedic.plot import style
from gradmedic.plot.labels import keep_plain, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Findings that get a line of their own in the legend.
_LISTED = 6
_TITLE_WIDTH = 44


def mark_findings(ax: Axes, findings: Sequence[Finding], say_in: Mapping[str, str]) -> list[Any]:
    """Mark where findings begin; return handles for the legend, most likely root cause first."""
    from matplotlib.lines import Line2D

    handles: list[Any] = []
    for number, finding in enumerate(findings[:_LISTED], start=1):
        color = style.SEVERITY[finding.severity]
        ax.axvline(finding.step, color=color, linewidth=1.0, alpha=0.9, zorder=1.8)
        # Findings of one step stand below each other.
        row = sum(earlier.step == finding.step for earlier in findings[: number - 1])
        text = ax.annotate(
            str(number),
            (finding.step, 1.0),
            xycoords=ax.get_xaxis_transform(),
            xytext=(0, -8 - 15 * row),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize="x-small",
            color="white",
            bbox={"boxstyle": "circle,pad=0.25", "facecolor": color, "edgecolor": "white", "linewidth": 0.6},
            zorder=6,
        )
        keep_plain([text])
        what = say_in["finding"].format(code=finding.code, title=label(finding.title, _TITLE_WIDTH), step=finding.step)
        handles.append(Line2D([], [], color=color, label=f"{number}  {what}"))
    if len(findings) > _LISTED:
        handles.append(Line2D([], [], color="none", label=say_in["more_findings"].format(n=len(findings) - _LISTED)))
    return handles
