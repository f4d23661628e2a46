"""Axes to draw on, and what goes around the data: titles, legends, a sentence where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradmedic.errors import InputError
from gradmedic.plot.labels import columns_of, keep_plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

#: Points between the axes and the title, and those that each row of a legend between them takes.
_TITLE_PAD, _ROW = 8.0, 15.0
#: Inches around axes.
_AIR = 0.07
#: Inches of a legend's letter, and of the sample of a colour with the gap beside it.
_LETTER, _HANDLE = 0.064, 0.52


def require_matplotlib() -> None:
    """Import matplotlib.

    Raises:
        InputError: it is not installed; the message says how to install it.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError("figures need matplotlib, which is not installed: pip install 'gradmedic[plot]'") from error


def axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """Return the axes to draw on: those given, or new ones in a figure of `size` inches that lays itself out."""
    require_matplotlib()
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return laid_out(pyplot.figure(figsize=size, layout="constrained")).add_subplot()


def laid_out(figure: Figure) -> Figure:
    """Give a figure with a constrained layout a little more air: turned labels come out a point longer than planned."""
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=_AIR, h_pad=_AIR)
    return figure


def say(ax: Axes, sentence: str) -> Axes:
    """Write a sentence where a figure has nothing to draw."""
    ax.set_xticks([])
    ax.set_yticks([])
    text = ax.text(0.5, 0.5, sentence, transform=ax.transAxes, ha="center", va="center", color="0.45", wrap=True)
    keep_plain([text])
    return ax


def name_axes(ax: Axes, *, x: str | None = None, y: str | None = None) -> None:
    """Write what is along the axes."""
    if x is not None:
        keep_plain([ax.set_xlabel(x)])
    if y is not None:
        keep_plain([ax.set_ylabel(y)])


def steps_along(ax: Axes, word: str) -> None:
    """Let steps stand along the x axis: whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    name_axes(ax, x=word)


def title(ax: Axes, text: str, *, pad: float | None = None) -> None:
    """Write the title at the left."""
    keep_plain([ax.set_title(text, loc="left", pad=pad)])


def head(ax: Axes, text: str, handles: Sequence[Any]) -> None:
    """Write the title, and between it and the axes a legend of labelled handles, in rows: it never covers data."""
    labels = [str(handle.get_label()) for handle in handles]
    columns = _columns_that_fit(labels, inches(ax)[0])
    rows = -(-len(labels) // columns)
    title(ax, text, pad=_TITLE_PAD + _ROW * rows if rows else None)
    if not rows:
        return
    made = ax.legend(
        _by_rows(handles, columns),
        _by_rows(labels, columns),
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=columns,
        frameon=False,
        borderaxespad=0.2,
        labelspacing=0.35,
        columnspacing=1.4,
        handlelength=1.6,
        fontsize="small",
    )
    keep_plain(made.get_texts())


def _columns_that_fit(labels: Sequence[str], width: float) -> int:
    """Return in how many columns labels fit beside each other; the widest of a column counts."""
    for columns in range(len(labels), 1, -1):
        widest = [max(map(columns_of, labels[at::columns])) for at in range(columns)]
        if sum(_HANDLE + _LETTER * each for each in widest) <= width:
            return columns
    return 1


def _by_rows(entries: Sequence[Any], columns: int) -> list[Any]:
    """Order entries so that a legend, which fills column by column, reads row by row."""
    return [entry for at in range(columns) for entry in entries[at::columns]]


def inches(ax: Axes) -> tuple[float, float]:
    """Return width and height of the axes in inches; before a layout was made, about."""
    place, figure = ax.get_position(), ax.figure
    return (
        float(place.width * figure.bbox.width / figure.dpi),
        float(place.height * figure.bbox.height / figure.dpi),
    )


def legend_beside(ax: Axes, handles: Sequence[Any], labels: Sequence[str]) -> Legend | None:
    """Put a legend to the right of the axes; in a figure without a layout of its own the axes make room for it."""
    if not handles:
        return None
    made = ax.legend(
        list(handles),
        list(labels),
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        borderaxespad=0.0,
        handlelength=1.6,
        fontsize="small",
    )
    keep_plain(made.get_texts())
    make_room(ax, made)
    return made


def make_room(ax: Axes, beside: Legend) -> None:
    """Narrow axes by the width of what stands to their right, as a colorbar does; a layout engine does it by itself."""
    figure = ax.figure
    if figure.get_layout_engine() is not None:
        return
    wide = beside.get_window_extent().width / figure.bbox.width
    place = ax.get_position()
    ax.set_position((place.x0, place.y0, max(0.3 * place.width, place.width - wide - 0.01), place.height))
