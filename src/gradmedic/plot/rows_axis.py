"""Names of rows along an axis: all where they fit, else those of blocks, else some of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from gradmedic.plot.canvas import inches
from gradmedic.plot.labels import WIDTH, keep_plain, unique_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Inches that one label takes across its line of writing.
_LINE = 0.14
#: From so many labels on they stand upright below the axis.
_SLANTED = 16
#: Widest label below an axis, in letters.
_WIDTH_BELOW = 28


def name_rows(ax: Axes, names: Sequence[str], blocks: Sequence[str], axis: str) -> None:
    """Label rows that stand at 0, 1, … along an axis.

    Args:
        ax: the axes.
        names, blocks: of the rows [R]; the block that each belongs to, "" for none.
        axis: "x" or "y".
    """
    length = inches(ax)[0 if axis == "x" else 1]
    places, texts, edges = chosen_labels(names, blocks, max(4, int(length / _LINE)))
    labels = unique_labels(texts, WIDTH if axis == "y" else _WIDTH_BELOW)
    if axis == "y":
        ax.set_yticks(places, labels, fontsize="small")
        keep_plain(ax.get_yticklabels())
    else:
        slanted = len(labels) <= _SLANTED
        turn = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if slanted else {"rotation": 90}
        ax.set_xticks(places, labels, fontsize="small", **turn)
        keep_plain(ax.get_xticklabels())
    for edge in edges:
        draw = ax.axvline if axis == "x" else ax.axhline
        draw(edge - 0.5, color="0.6", linewidth=0.5, alpha=0.6, zorder=1.5)


def chosen_labels(names: Sequence[str], blocks: Sequence[str], room: int) -> tuple[list[int], list[str], list[int]]:
    """Return which rows get a label, the labels, and the rows at which a block of several begins.

    Args:
        names, blocks: of the rows [R].
        room: how many labels fit.

    Returns:
        (rows, labels, edges): each row where all fit; else the middle row of every block, or of every nth, if there are
        blocks of several rows; else every nth row.
    """
    if len(names) <= room:
        return list(range(len(names))), list(names), []
    runs = _runs(names, blocks)
    if len(runs) > len(names) / 2:
        places = list(range(0, len(names), -(-len(names) // room)))
        return places, [names[place] for place in places], []
    shown = runs[:: -(-len(runs) // room)]
    edges = [start for start, _, _ in runs if start] if len(shown) == len(runs) else []
    return [(start + stop - 1) // 2 for start, stop, _ in shown], [text for _, _, text in shown], edges


def _runs(names: Sequence[str], blocks: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return (start, stop, label) of the stretches of rows that belong to one block; a row of none is by itself."""
    runs = []
    start = 0
    keys = (block or f"\0{at}" for at, block in enumerate(blocks))
    for key, group in groupby(keys):
        stop = start + sum(1 for _ in group)
        runs.append((start, stop, names[start] if key.startswith("\0") or stop - start == 1 else key))
        start = stop
    return runs
