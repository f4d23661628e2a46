"""The backward pass as it travels: the gradient from output to input, step by step."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gradmedic.errors import InputError
from gradmedic.plot import style
from gradmedic.plot.animation_file import checked_writer, save
from gradmedic.plot.canvas import axes, name_axes, say, title
from gradmedic.plot.labels import keep_plain
from gradmedic.plot.rows_axis import name_rows
from gradmedic.plot.source import Drawn, views_of
from gradmedic.plot.states import NOT_FINITE, NUMBER
from gradmedic.plot.steps import Steps
from gradmedic.plot.tables import Patterns, Table, table_of
from gradmedic.plot.words import words
from gradmedic.record.arrays import Array
from gradmedic.report.views import Source, scalars_of

if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation
    from matplotlib.axes import Axes

_Draw: TypeAlias = Callable[[int], list[Any]]

#: Earlier steps that stay visible behind the present one, and how strongly.
_TRAIL = (0.35, 0.18, 0.09)


def flow_animation(
    source: Drawn,
    path: str | os.PathLike[str] | None = None,
    *,
    fps: float = 10.0,
    metric: str = "norm",
    per: str = "layer",
    optimizer: str | None = None,
    layers: Patterns = "*",
    steps: Steps = None,
    at_most: int = 30,
    travel: int = 4,
    ax: Axes | None = None,
    lang: str = "en",
) -> FuncAnimation:
    """Animate the gradient on its way from the output to the input, one optimizer step after the other.

    Each step takes `travel` frames, in which the curve grows from the output (left) to the input (right); fainter
    curves are the steps before it, the grey band is all that the run has had. A cross at the upper edge is a layer
    whose gradient was not finite.

    Args:
        source: a `Run`, the path of a run folder, or a `Monitor`.
        path: where to save it: "flow.gif", or "flow.mp4" (also .m4v, .mov, .mkv, .webm), which needs ffmpeg. None: it
            is returned only.
        fps: frames a second, > 0.
        metric: "norm", "max_abs", "mean_abs", "rms" or "update_ratio".
        per, optimizer, layers, steps: what to show, see `gradient_flow`.
        at_most: so many steps are shown, >= 1; of each stretch the one whose gradient is strangest.
        travel: frames that a step takes, >= 1.
        ax: axes to draw on; by default those of a new figure.
        lang: "en" or "zh".

    Returns:
        The animation. Keep it as long as it is to play; in a notebook, `HTML(animation.to_jshtml())` shows it.

    Raises:
        InputError: matplotlib is missing, the file cannot be written in that format here, there is no such run, or an
            argument is not as described.

    Example:
        >>> gm.plot.flow_animation("runs/exp1", "flow.gif", layers="encoder.*")  # doctest: +SKIP
    """
    if metric not in ("norm", "max_abs", "mean_abs", "rms", "update_ratio"):
        raise InputError(f"metric must be norm, max_abs, mean_abs, rms or update_ratio, not {metric!r}")
    if not fps > 0:
        raise InputError(f"fps must be above 0, got {fps!r}")
    say_in = words(lang)
    views = views_of(source)
    table = table_of(views, metric, per=per, optimizer=optimizer, layers=layers, steps=steps)
    own = ax is None
    ax = axes(ax, (8.0, 4.2))
    writer = None if path is None else checked_writer(path, fps)
    if table.values.size:
        backwards = table.only(range(len(table.names))[::-1])
        stage = _Stage(ax, backwards, _strangest(backwards, max(1, at_most)), max(1, travel), say_in)
        stage.prepare(f"{say_in['flow_animation']}: {say_in[metric]}", say_in[per], say_in[metric])
        stage.notes = _notes(views, optimizer)
        draw: _Draw = stage.draw
        count = len(stage.places) * stage.travel
    else:
        say(ax, say_in["no_tables" if not len(table.names) or steps is None else "no_selected"])
        draw = _still
        count = 1
    if own:
        _settle(ax)
    if writer is not None and path is not None:
        save(ax, draw, count, path, writer)
    return _animation(ax, draw, count, fps, drawn=writer is not None)


def _settle(ax: Axes) -> None:
    """Lay the figure out once: that takes longer than all that changes between two frames."""
    figure = ax.figure.figure
    for _ in range(2):  # labels that are turned take another width once the axes have another
        figure.draw_without_rendering()
    figure.set_layout_engine("none")


def _animation(ax: Axes, draw: _Draw, count: int, fps: float, *, drawn: bool) -> FuncAnimation:
    from matplotlib.animation import FuncAnimation

    made = FuncAnimation(ax.figure.figure, draw, frames=count, interval=1000.0 / fps, cache_frame_data=False)
    if drawn:
        # It is in the file: matplotlib need not complain when nobody looks at it otherwise.
        made._draw_was_started = True  # type: ignore[attr-defined]
    return made


def _still(_: int) -> list[Any]:
    return []


def _strangest(table: Table, count: int) -> list[int]:
    """Return so many places in `table.steps`: of each stretch the step farthest from the usual, in order."""
    logs = np.log10(np.where(table.values > 0, table.values, np.nan))
    known = ~np.isnan(logs)
    sizes = np.where(known, logs, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    strange: Array = np.abs(sizes - np.median(sizes))
    strange[(table.states == NOT_FINITE).any(axis=1)] = np.inf
    parts = np.array_split(np.arange(len(strange)), min(count, len(strange)))
    return [int(part[strange[part].argmax()]) for part in parts]


def _notes(views: Source, optimizer: str | None) -> dict[int, str]:
    """Return the loss of each step as text; of several optimizers, that of the first."""
    found = scalars_of(views)
    scalars = found.get(optimizer) if optimizer is not None else next(iter(found.values()), None)
    if scalars is None:
        return {}
    losses = scalars.columns["loss"].tolist()
    return {
        int(step): f"{loss:.3g}" if np.isfinite(loss) else "NaN / inf"
        for step, loss in zip(scalars.steps.tolist(), losses, strict=True)
        if not np.isnan(loss)
    }


@dataclass(slots=True)
class _Stage:
    """What moves: the curve of the present step, those before it, and the words above them."""

    ax: Axes
    table: Table
    places: list[int]
    travel: int
    say_in: Mapping[str, str]
    notes: Mapping[int, str]
    lines: list[Any]
    head: Any
    crosses: Any
    caption: Any

    def __init__(self, ax: Axes, table: Table, places: list[int], travel: int, say_in: Mapping[str, str]) -> None:
        self.ax, self.table, self.places, self.travel, self.say_in = ax, table, places, travel, say_in
        self.notes = {}

    def prepare(self, headline: str, what: str, measure: str) -> None:
        """Draw what stands still."""
        ax, values = self.ax, self.table.values
        x = np.arange(values.shape[1])
        positive = values[values > 0]
        if len(positive):
            ax.set_yscale("log", nonpositive="mask")
            ax.set_ylim(positive.min() / 3, positive.max() * 3)
        shown = np.where(values > 0, values, np.nan)
        rows = ~np.isnan(shown).all(axis=0)
        low, high = np.full(len(x), np.nan), np.full(len(x), np.nan)
        low[rows], high[rows] = np.nanmin(shown[:, rows], axis=0), np.nanmax(shown[:, rows], axis=0)
        ax.fill_between(x, low, high, color=style.ABSENT, alpha=0.45, linewidth=0)
        self.lines = [
            ax.plot([], [], color=style.MAIN, alpha=alpha, linewidth=width)[0]
            for alpha, width in ((1.0, 2.0), *((alpha, 1.2) for alpha in _TRAIL))
        ]
        self.head = ax.plot([], [], "o", color=style.AFTER, markersize=7, zorder=5)[0]
        across = ax.get_xaxis_transform()
        self.crosses = ax.plot([], [], "x", color=style.NONFINITE, transform=across, clip_on=False, zorder=5)[0]
        title(ax, headline)
        above: dict[str, Any] = {
            "xycoords": "axes fraction",
            "textcoords": "offset points",
            "ha": "right",
            "va": "bottom",
        }
        self.caption = ax.annotate("", (1.0, 1.0), (0, 6), **above, annotation_clip=False)
        keep_plain([self.caption])
        ax.set_xlim(-0.6, len(x) - 0.4)
        name_rows(ax, self.table.names, self.table.blocks, "x")
        name_axes(ax, x=self.say_in["outputs_first"].format(what=what), y=measure)

    def draw(self, frame: int) -> list[Any]:
        """Draw one frame; return what has changed."""
        at, phase = divmod(frame, self.travel)
        row = self.places[at]
        reached = -(-len(self.table.names) * (phase + 1) // self.travel)
        x = np.arange(len(self.table.names))
        values = np.where(self.table.values > 0, self.table.values, np.nan)
        self.lines[0].set_data(x[:reached], values[row, :reached])
        for age, line in enumerate(self.lines[1:], start=1):
            earlier = values[self.places[at - age]] if at >= age else np.full(len(x), np.nan)
            line.set_data(x, earlier)
        front = x[:reached][self.table.states[row, :reached] == NUMBER][-1:]
        self.head.set_data(front, values[row, front])
        broken = x[:reached][self.table.states[row, :reached] == NOT_FINITE]
        self.crosses.set_data(broken, np.full(len(broken), 0.975))
        step = int(self.table.steps[row])
        loss = f"   {self.say_in['loss']} {self.notes[step]}" if step in self.notes else ""
        self.caption.set_text(self.say_in["frame"].format(step=step) + loss)
        return [*self.lines, self.head, self.crosses, self.caption]
