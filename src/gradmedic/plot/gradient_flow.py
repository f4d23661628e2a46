"""The gradient by layer, from input to output: where it vanishes, explodes, or is no number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gradmedic.errors import InputError
from gradmedic.plot import style
from gradmedic.plot.canvas import axes, head, name_axes, say
from gradmedic.plot.extremes import HUGE, set_log_limits
from gradmedic.plot.lines import plain_log_ticks_if_short
from gradmedic.plot.rows_axis import name_rows
from gradmedic.plot.scalars import shown_scalars
from gradmedic.plot.source import Drawn, views_of
from gradmedic.plot.states import ABSENT, LOOKS, NOT_FINITE, NUMBER
from gradmedic.plot.steps import Steps
from gradmedic.plot.tables import Patterns, Table, table_of
from gradmedic.plot.words import words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

#: Metric -> (columns of the two bars: the lower and the upper, keys of their words).
_BARS = {
    "norm": (("norm", "norm"), ("median", "maximum")),
    "rms": (("rms", "rms"), ("median", "maximum")),
    "abs": (("mean_abs", "max_abs"), ("mean_of", "max_of")),
}
#: From so many rows on there are curves instead of bars.
_BARS_UP_TO = 80


def gradient_flow(
    source: Drawn,
    *,
    metric: str = "norm",
    per: str = "layer",
    optimizer: str | None = None,
    layers: Patterns = "*",
    steps: Steps = None,
    threshold: float | None = None,
    ax: Axes | None = None,
    lang: str = "en",
) -> Axes:
    """Draw the gradient of each layer in execution order, on a logarithmic scale.

    Bars that fall from right to left, from the output to the input, are a gradient that vanishes on its way; bars that
    rise are one that explodes. A cross at the upper edge marks a layer that had NaN or infinity, a mark at the lower
    edge one whose gradient was zero or was not there at all.

    Args:
        source: a `Run`, the path of a run folder, or a `Monitor` (what it has recorded so far).
        metric: "norm" (L2 norm: median and maximum over the steps), "rms" (the norm over the root of the number of
            elements, so that layers of all sizes compare) or "abs" (mean |g| and max |g|).
        per: "layer" (modules that own tensors, their tensors joined) or "tensor".
        optimizer: whose tensors; by default those of all.
        layers: a pattern as those of files ("encoder.*"), or several; a name stands for all that it holds.
        steps: which steps: None for all, a number for one, `slice(-50, None)` for the last 50 step indices, a range, or
            several numbers. Only those with a recorded table count.
        threshold: where to draw a line; by default at the median of the clip threshold, with metric "norm" only, if
            anything was clipped by norm. (That threshold is for the norm of all layers together.)
        ax: axes to draw on; by default those of a new figure.
        lang: "en" or "zh".

    Returns:
        The axes.

    Raises:
        InputError: matplotlib is missing, there is no such run, or an argument is not as described.

    Example:
        >>> import torch, gradmedic as gm
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with gm.watch(model, optimizer) as monitor:
        ...     model(torch.ones(4, 2)).sum().backward()
        ...     optimizer.step()
        >>> ax = gm.plot.gradient_flow(monitor)
        >>> [tick.get_text() for tick in ax.get_xticklabels()]
        ['0', '2']
    """
    if metric not in _BARS:
        raise InputError(f"metric must be one of {', '.join(_BARS)}, not {metric!r}")
    say_in = words(lang)
    views = views_of(source)
    lower, upper = (
        table_of(views, column, per=per, optimizer=optimizer, layers=layers, steps=steps) for column in _BARS[metric][0]
    )
    ax = axes(ax, (9.0, 4.6))
    if not lower.values.size:
        return say(ax, say_in["no_tables" if not len(lower.names) or steps is None else "no_selected"])
    handles = _bars(ax, lower, upper, [say_in[key] for key in _BARS[metric][1]])
    level = threshold if threshold is not None else _clip_threshold(views, metric, optimizer, steps)
    if level is not None:
        text = say_in["clip_threshold" if threshold is None else "given_threshold"].format(value=f"{level:.3g}")
        handles.append(ax.axhline(level, color=style.THRESHOLD, linestyle="--", linewidth=1.2, label=text))
    plain_log_ticks_if_short(ax)
    handles += _marks(ax, lower, say_in)
    head(ax, _headline(lower, say_in), handles)
    name_rows(ax, lower.names, lower.blocks, "x")
    ax.set_xlim(-0.6, len(lower.names) - 0.4)
    name_axes(ax, x=say_in["inputs_first"].format(what=say_in[per]), y=say_in[metric])
    return ax


def _headline(table: Table, say_in: Mapping[str, str]) -> str:
    first, last = int(table.steps.min()), int(table.steps.max())
    one = first == last
    when = say_in["frame"].format(step=first) if one else say_in["steps"].format(first=first, last=last)
    return f"{say_in['gradient_flow']} ({when})"


def over_steps(values: Any, reduce: Any) -> Any:
    """Return what `reduce` makes of each row's numbers [S, R] -> [R], NaN where a row has none."""
    known = ~np.isnan(values).all(axis=0)
    made = np.full(values.shape[1], np.nan)
    # Sums of the two middle values of a median may overflow; halves of the smallest numbers would be zero.
    scale = 0.25 if known.any() and np.nanmax(np.abs(values[:, known])) > HUGE else 1.0
    made[known] = reduce(values[:, known] * scale, axis=0) / scale
    return made


def _bars(ax: Axes, lower: Table, upper: Table, labels: list[str]) -> list[Any]:
    middle, highest = over_steps(lower.values, np.nanmedian), over_steps(upper.values, np.nanmax)
    drawn = [(highest, style.LIGHT, labels[1]), (middle, style.MAIN, labels[0])]
    if len(lower.steps) == 1 and np.array_equal(middle, highest, equal_nan=True):
        drawn = drawn[1:]
    positive = np.concatenate([middle, highest])
    positive = positive[positive > 0]
    if len(positive):
        ax.set_yscale("log", nonpositive="clip")
        set_log_limits(ax, positive)
    places = np.arange(len(middle))
    handles: list[Any] = []
    for values, color, label in drawn:
        if len(places) <= _BARS_UP_TO:
            handles.append(ax.bar(places, np.nan_to_num(values), color=color, width=0.72, label=label))
        else:
            handles.append(
                ax.plot(places, values, color=color, linewidth=1.2, marker=".", markersize=3, label=label)[0]
            )
    return handles[::-1]


def _clip_threshold(views: Any, metric: str, optimizer: str | None, steps: Steps) -> float | None:
    if metric != "norm":
        return None
    levels = np.concatenate([np.zeros(0), *(each.threshold for each in shown_scalars(views, optimizer, steps))])
    levels = levels[np.isfinite(levels) & (levels > 0)]
    return float(np.median(levels)) if len(levels) else None


def _marks(ax: Axes, table: Table, say_in: Mapping[str, str]) -> list[Any]:
    """Mark layers that were not finite at the upper edge, and at the lower edge those that never had a number."""
    handles = []
    broken = (table.states == NOT_FINITE).any(axis=0)
    silent = ~(table.states == NUMBER).any(axis=0) & ~broken
    lowest = np.min(np.where(table.states == NUMBER, ABSENT, table.states), axis=0)
    for state, (key, color, marker) in LOOKS.items():
        places = np.flatnonzero(broken if state == NOT_FINITE else silent & (lowest == state))
        if len(places):
            height = 0.975 if state == NOT_FINITE else 0.025
            look: dict[str, Any] = {"marker": marker, "color": color, "markersize": 6, "markeredgewidth": 1.5}
            (line,) = ax.plot(
                places,
                np.full(len(places), height),
                transform=ax.get_xaxis_transform(),
                linestyle="none",
                label=say_in[key],
                clip_on=False,
                zorder=5,
                **look,
            )
            handles.append(line)
    return handles
