"""Writing an animation to a file, with what matplotlib brings along."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradmedic.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FILMS = (".mp4", ".m4v", ".mov", ".mkv", ".webm")
_DPI = 100


def checked_writer(path: str | os.PathLike[str], fps: float) -> Any:
    """Return the writer for a file, before any frame is drawn.

    Raises:
        InputError: the format is not known, what writes it is not there, or there is no such folder.
    """
    from matplotlib import animation

    file = Path(path)
    if not file.absolute().parent.is_dir():
        raise InputError(f"cannot save {str(file)!r}: there is no folder {str(file.absolute().parent)!r}")
    kind = file.suffix.lower()
    if kind == ".gif":
        return animation.PillowWriter(fps=fps)  # type: ignore[arg-type]
    if kind not in _FILMS:
        raise InputError(f"an animation is saved as .gif, {', '.join(_FILMS)}; got {str(file)!r}")
    if not animation.FFMpegWriter.isAvailable():
        raise InputError(f"{kind} needs ffmpeg, which is not on the PATH: install it, or save a .gif")
    return animation.FFMpegWriter(fps=fps)  # type: ignore[arg-type]


def save(ax: Axes, draw: Callable[[int], Sequence[Any]], count: int, path: str | os.PathLike[str], writer: Any) -> None:
    """Save frames.

    What stands still is rendered once and then shown as a picture: ticks and their labels take several times longer
    than all that moves.

    Args:
        ax: the axes that move.
        draw: draws frame n, and returns everything that moves.
        count: number of frames.
        path: the file.
        writer: what `checked_writer` returned for it.
    """
    figure = ax.figure.figure
    moving = draw(0)
    shown = [each for each in _all_of(figure, ax) if each.get_visible() and each not in moving]
    with writer.saving(figure, os.fspath(path), _DPI):
        ground = _rendered(figure, moving)
        picture = figure.figimage(ground, zorder=-1)
        try:
            for each in shown:
                each.set_visible(False)
            for frame in range(count):
                draw(frame)
                writer.grab_frame(facecolor=figure.get_facecolor())
        finally:
            picture.remove()
            for each in shown:
                each.set_visible(True)


def _all_of(figure: Any, ax: Axes) -> list[Any]:
    """Return the parts of the axes, the other axes, and what stands in the figure beside them."""
    beside = [*figure.texts, *figure.legends, *figure.images, *figure.lines, *figure.patches]
    return [*ax.get_children(), *(each for each in figure.axes if each is not ax), *beside]


def _rendered(figure: Any, moving: Sequence[Any]) -> Any:
    """Return the figure without what moves as a picture, uint8 [height, width, 4]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    before = figure.canvas, figure.dpi, [each.get_visible() for each in moving]
    try:
        figure.dpi = _DPI
        for each in moving:
            each.set_visible(False)
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        return np.array(canvas.buffer_rgba())
    finally:
        figure.set_canvas(before[0])
        figure.dpi = before[1]
        for each, visible in zip(moving, before[2], strict=True):
            each.set_visible(visible)
