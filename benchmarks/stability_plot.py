"""The picture of docs/stability.md; needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import stability_outcome as measure
from stability_outcome import Outcome


def draw(plain: dict[str, list[Outcome]], guarded: dict[str, list[Outcome]], path: Path) -> str:
    """Draw the stable shares with their intervals; return what was done, or why not."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # type: ignore[import-not-found,unused-ignore]
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return f"{path.name}: not drawn, matplotlib is not installed (pip install matplotlib)"
    figure = Figure(figsize=(10, 4.2), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharex=True)
    _bars(left, plain, "as published")
    _bars(right, guarded, "behind skip_nonfinite()")
    figure.suptitle(
        "Runs that end at their target: 12-layer post-norm transformer, aggressive settings, spoiled batches"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    return f"{path.name}: drawn"


def _bars(axes: Any, table: dict[str, list[Outcome]], title: str) -> None:
    names: Sequence[str] = list(table)
    shares = [measure.stable_share(found) for found in table.values()]
    at = range(len(names))
    colours = ["#2a7f62" if "default" in name else "#9aa5b1" for name in names]
    errors = [[s.value - s.low for s in shares], [s.high - s.value for s in shares]]
    axes.barh(at, [s.value for s in shares], xerr=errors, color=colours, capsize=2, error_kw={"elinewidth": 1})
    axes.set_yticks(at, [name.replace("*", "") for name in names])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.02)
    axes.set_xlabel("share of runs, 95 % interval")
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
