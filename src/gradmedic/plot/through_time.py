"""The gradient of a recurrent net on its way back through time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gradmedic.plot import style
from gradmedic.plot.canvas import axes, head, name_axes, say
from gradmedic.plot.labels import unique_labels
from gradmedic.plot.lines import at_bottom, at_top, log_if_positive
from gradmedic.plot.source import Drawn, views_of
from gradmedic.plot.steps import Steps, chosen_steps
from gradmedic.plot.tables import Patterns, matching
from gradmedic.plot.time_tables import Course, courses
from gradmedic.plot.words import words
from gradmedic.record.arrays import Array
from gradmedic.report.views import TensorRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes


def through_time(
    source: Drawn,
    *,
    layers: Patterns = "*",
    steps: Steps = None,
    ax: Axes | None = None,
    lang: str = "en",
) -> Axes:
    """Draw the gradient of a recurrent net by time step: the median over the sampled steps, in a band of all of them.

    It comes in at the right, where the loss is, and goes back to the left. A straight line down to the left is a
    gradient that vanishes by a constant factor a time step: what came early is not learned. One that rises explodes.

    Args:
        source: a `Run`, the path of a run folder, or a `Monitor`.
        layers: a pattern as those of files, or several, over the names of the recurrent weights.
        steps: which optimizer steps, see `gradient_flow`; only sampled ones count (`modules_every` of `gm.watch`).
        ax: axes to draw on; by default those of a new figure.
        lang: "en" or "zh".

    Returns:
        The axes. Nine points of the time axis are recorded, of nets that use one weight at eight time steps or more;
        of layers that run as one operation (`nn.LSTM`) only those whose input takes a gradient.

    Raises:
        InputError: matplotlib is missing, there is no such run, or an argument is not as described.

    Example:
        >>> import torch, gradmedic as gm
        >>> model = torch.nn.RNN(2, 4)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with gm.watch(model, optimizer) as monitor:
        ...     model(torch.ones(20, 1, 2))[0][-1].square().sum().backward()
        ...     optimizer.step()
        >>> gm.plot.through_time(monitor).get_xlabel()
        'time step'
    """
    say_in = words(lang)
    found = courses(views_of(source))
    wanted = {row.name for row in matching([TensorRow(each.name) for each in found], layers)}
    found = [each for each in found if each.name in wanted]
    ax = axes(ax, (8.0, 4.2))
    kept = [each.values[chosen_steps(each.steps, steps)] for each in found]
    if not any((~np.isnan(values)).any() for values in kept):
        return say(ax, say_in["no_selected" if found else "no_recurrent"])
    log_if_positive(ax, kept)
    labels = unique_labels([each.name for each in found])
    handles = [
        _course(ax, each, values, label, style.SERIES[at % len(style.SERIES)])
        for at, (each, values, label) in enumerate(zip(found, kept, labels, strict=True))
    ]
    handles += _edges(ax, found, kept, say_in)
    head(ax, say_in["through_time"], handles)
    name_axes(ax, x=say_in["time_step"], y=say_in["norm"])
    return ax


def _course(ax: Axes, course: Course, values: Array, label: str, color: str) -> Any:
    known = np.where(np.isfinite(values), values, np.nan)
    there = ~np.isnan(known).all(axis=0)
    middle, low, high = (np.full(len(course.times), np.nan) for _ in range(3))
    for made, reduce in ((middle, np.nanmedian), (low, np.nanmin), (high, np.nanmax)):
        made[there] = reduce(known[:, there], axis=0)
    if len(known) > 1:
        ax.fill_between(course.times, low, high, color=color, alpha=0.2, linewidth=0)
    (line,) = ax.plot(course.times, middle, color=color, marker="o", markersize=3.5, linewidth=1.4, label=label)
    return line


def _edges(ax: Axes, found: Sequence[Course], kept: Sequence[Array], say_in: Mapping[str, str]) -> list[Any]:
    """Mark time steps whose gradient was not finite at the upper edge, and those where it was zero at the lower."""
    handles = []
    for hits, mark, key in (
        ([np.isinf(values).any(axis=0) for values in kept], at_top, "nonfinite"),
        ([(values == 0).any(axis=0) for values in kept], at_bottom, "zero"),
    ):
        places = np.unique(np.concatenate([each.times[hit] for each, hit in zip(found, hits, strict=True)]))
        if len(places):
            handles.append(mark(ax, places, say_in[key]))
    return handles
