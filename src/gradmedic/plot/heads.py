"""Attention head by head: which heads get a gradient, where each looks, how hard it chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradmedic.errors import InputError
from gradmedic.plot import style
from gradmedic.plot.canvas import axes, head, name_axes, say
from gradmedic.plot.labels import keep_plain
from gradmedic.plot.rows_axis import name_rows
from gradmedic.plot.source import Drawn, views_of
from gradmedic.plot.states import ABSENT, LOOKS, NOT_FINITE, NUMBER, ZERO
from gradmedic.plot.steps import Steps, chosen_steps
from gradmedic.plot.tables import Patterns, matching
from gradmedic.plot.words import words
from gradmedic.record.arrays import Array
from gradmedic.report.views import HeadSeries, TensorRow, head_series

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

#: Metric -> whether it belongs on a logarithmic scale.
_METRICS = {"grad_norm": True, "entropy": False, "max_logit": False}
#: Metric -> its range, so that the colours of several figures are the same.
_RANGES = {"entropy": (0.0, 1.0)}
#: Numbers are written into the cells of so many rows at most.
_WRITTEN_UP_TO = 16


def heads(
    source: Drawn,
    *,
    metric: str = "grad_norm",
    layers: Patterns = "*",
    steps: Steps = None,
    ax: Axes | None = None,
    lang: str = "en",
) -> Axes:
    """Draw a number of every attention head: a row for each attention, input at the top, a column for each head.

    A layer's gradient is that of all its heads together; this shows the one head or the one block that does not learn.

    Args:
        source: a `Run`, the path of a run folder, or a `Monitor`.
        metric: "grad_norm" (L2 norm of the gradient that comes back to the head's output), "entropy" (of its weights,
            over ln T: 1 looks everywhere, 0 at one place) or "max_logit"; of each the median over the sampled steps.
        layers: a pattern as those of files ("blocks.*"), or several, over the names of the modules with attention.
        steps: which steps, see `gradient_flow`; only sampled ones count (`modules_every` of `gm.watch`).
        ax: axes to draw on; by default those of a new figure.
        lang: "en" or "zh".

    Returns:
        The axes; the colour bar stands at their right.

    Raises:
        InputError: matplotlib is missing, there is no such run, or an argument is not as described.

    Example:
        >>> import torch, gradmedic as gm
        >>> model = torch.nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=8, batch_first=True)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with gm.watch(model, optimizer) as monitor:
        ...     model(torch.ones(4, 3, 8)).square().sum().backward()
        ...     optimizer.step()
        >>> gm.plot.heads(monitor, metric="entropy").get_xlabel()
        'head'
    """
    if metric not in _METRICS:
        raise InputError(f"metric must be one of {', '.join(_METRICS)}, not {metric!r}")
    say_in = words(lang)
    found = [each for each in head_series(views_of(source)) if each.what == metric and each.labels[0].isdecimal()]
    wanted = {row.name for row in matching([TensorRow(each.module) for each in found], layers)}
    found = [each for each in found if each.module in wanted]
    ax = axes(ax, (7.0, max(2.6, 1.4 + 0.32 * min(len(found), 24))))
    kept = [chosen_steps(each.steps, steps) for each in found]
    if not any(each.any() for each in kept):
        return say(ax, say_in["no_selected" if found else "no_heads"])
    values, states = _grid(found, kept, log=_METRICS[metric])
    what = say_in[f"head_{metric}"]
    picture = _draw(ax, values, states, log=_METRICS[metric], bounds=_RANGES.get(metric))
    bar = ax.figure.colorbar(picture, ax=ax, pad=0.015, fraction=0.05)
    bar.set_label(say_in["log"].format(what=what) if _METRICS[metric] else what)
    keep_plain([bar.ax.yaxis.label])
    head(ax, f"{say_in['heads']}: {what} ({_when(found, kept, say_in)})", _draw_states(ax, states, say_in))
    name_rows(ax, [each.module for each in found], [""] * len(found), "y")
    ax.set_xticks(range(values.shape[1]))
    name_axes(ax, x=say_in["head"])
    return ax


def _grid(found: Sequence[HeadSeries], kept: Sequence[Array], *, log: bool) -> tuple[Array, Array]:
    """Return the median over the kept steps, and what each cell holds [modules, heads]."""
    width = max(1 + int(label) for each in found for label in each.labels)
    values = np.full((len(found), width), np.nan)
    states = np.full(values.shape, ABSENT, dtype=np.uint8)
    for row, (series, chosen) in enumerate(zip(found, kept, strict=True)):
        for line, label in enumerate(series.labels):
            column = series.values[chosen, line]
            known = column[np.isfinite(column)]
            if np.isinf(column).any():
                states[row, int(label)] = NOT_FINITE
            elif len(known):
                middle = float(np.median(known))
                states[row, int(label)] = ZERO if log and middle <= 0 else NUMBER
                values[row, int(label)] = middle
    return np.where(states == NUMBER, values, np.nan), states


def _when(found: Sequence[HeadSeries], kept: Sequence[Array], say_in: Mapping[str, str]) -> str:
    shown = np.concatenate([each.steps[chosen] for each, chosen in zip(found, kept, strict=True)])
    first, last = int(shown.min()), int(shown.max())
    return say_in["frame"].format(step=first) if first == last else say_in["median_over"].format(first=first, last=last)


def _draw(ax: Axes, values: Array, states: Array, *, log: bool, bounds: tuple[float, float] | None) -> Any:
    from matplotlib.colors import Normalize

    shown = np.log10(values) if log else values
    known = shown[np.isfinite(shown)]
    low, high = bounds or ((float(known.min()), float(known.max())) if len(known) else (0.0, 1.0))
    norm = Normalize(low, high) if high > low else Normalize(low - 0.5, high + 0.5)
    picture = ax.imshow(
        np.ma.masked_invalid(shown), aspect="auto", interpolation="nearest", cmap=style.COLORMAP, norm=norm
    )
    if len(values) > _WRITTEN_UP_TO or values.shape[1] > _WRITTEN_UP_TO // 2:
        return picture
    for row, column in np.argwhere(states == NUMBER).tolist():
        ink = "white" if norm(shown[row, column]) < 0.6 else "black"
        text = f"{values[row, column]:.1e}" if log else f"{values[row, column]:.3g}"
        ax.text(column, row, text, ha="center", va="center", color=ink, fontsize="x-small")
    return picture


def _draw_states(ax: Axes, states: Array, say_in: Mapping[str, str]) -> list[Any]:
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.patches import Patch

    present = [state for state in LOOKS if (states == state).any()]
    if present:
        colors = ListedColormap([LOOKS[state][1] for state in LOOKS])
        hidden = np.ma.masked_equal(states.astype(float), float(NUMBER))
        edges = Normalize(min(LOOKS) - 0.5, max(LOOKS) + 0.5)
        ax.imshow(hidden, aspect="auto", interpolation="nearest", cmap=colors, norm=edges)
    return [Patch(facecolor=LOOKS[state][1], label=say_in[LOOKS[state][0]]) for state in present]
