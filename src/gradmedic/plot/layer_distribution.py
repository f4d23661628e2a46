"""How |g| is distributed within each layer: boxes out of the recorded log2 histograms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gradmedic.plot import style
from gradmedic.plot.canvas import axes, head, name_axes, say
from gradmedic.plot.histograms import Boxes, boxes_of
from gradmedic.plot.rows_axis import name_rows
from gradmedic.plot.source import Drawn, views_of
from gradmedic.plot.states import LOOKS, NOT_FINITE, ZERO
from gradmedic.plot.steps import Steps
from gradmedic.plot.tables import Patterns
from gradmedic.plot.words import words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

#: From so many rows on, quantiles are drawn as bands: a box would be thinner than its outline.
_BOXES_UP_TO = 60


def layer_distribution(
    source: Drawn,
    *,
    per: str = "layer",
    optimizer: str | None = None,
    layers: Patterns = "*",
    steps: Steps = None,
    at_most: int = 3,
    ax: Axes | None = None,
    lang: str = "en",
) -> Axes:
    """Draw the distribution of |g| of each layer in execution order, several steps side by side.

    A box holds the middle half of the elements, its line the median, the whiskers 5 to 95 %, the dot the largest; zeros
    and non-finite elements are left out. Histograms of powers of two are what is recorded, so that a quantile is right
    within a factor of 2. From 60 rows on, bands take the place of boxes.

    Args:
        source: a `Run`, the path of a run folder, or a `Monitor`.
        per: "layer" or "tensor".
        optimizer, layers: what to show, see `gradient_flow`.
        steps: which steps, see `gradient_flow`; only some have histograms (every 50th).
        at_most: so many of them are drawn, evenly spread, >= 1.
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
        >>> gm.plot.layer_distribution(monitor).get_ylabel()
        '|g|'
    """
    say_in = words(lang)
    groups, rows, boxes, recorded = boxes_of(
        views_of(source), per=per, optimizer=optimizer, layers=layers, steps=steps, at_most=max(1, at_most)
    )
    ax = axes(ax, (9.0, 4.8))
    if not any(np.isfinite(each.quantiles).any() or each.broken.any() or each.zero.any() for each in boxes):
        there = ", ".join(map(str, recorded[:12])) + (", …" if len(recorded) > 12 else "")
        return say(ax, say_in["histograms_at"].format(steps=there) if recorded else say_in["no_histograms"])
    positive = np.concatenate([each.quantiles[each.quantiles > 0] for each in boxes])
    if len(positive):
        ax.set_yscale("log", nonpositive="clip")
        ax.set_ylim(positive.min() / 3, positive.max() * 3)
    draw = _boxes if len(groups) <= _BOXES_UP_TO else _bands
    handles = [draw(ax, each, at, len(boxes), say_in) for at, each in enumerate(boxes)]
    handles += _edges(ax, boxes, say_in)
    head(ax, say_in["layer_distribution"], handles)
    name_rows(ax, [group.name for group in groups], [rows[group.tensors[0]].block for group in groups], "x")
    ax.set_xlim(-0.6, len(groups) - 0.4)
    name_axes(ax, x=say_in["inputs_first"].format(what=say_in[per]), y="|g|")
    return ax


def _boxes(ax: Axes, boxes: Boxes, at: int, of: int, say_in: Mapping[str, str]) -> Any:
    from matplotlib.patches import Patch

    color = style.SERIES[at % len(style.SERIES)]
    width = 0.8 / of
    shown = np.flatnonzero(~np.isnan(boxes.quantiles[:, 2]))
    stats = [
        {"whislo": low, "q1": first, "med": middle, "q3": third, "whishi": high, "fliers": [most]}
        for low, first, middle, third, high, most in boxes.quantiles[shown].tolist()
    ]
    ax.bxp(
        stats,
        positions=shown - 0.4 + width * (at + 0.5),
        widths=0.8 * width,
        manage_ticks=False,
        patch_artist=True,
        boxprops={"facecolor": color, "alpha": 0.55, "edgecolor": color},
        medianprops={"color": "black", "linewidth": 1.2},
        whiskerprops={"color": color},
        capprops={"color": color},
        flierprops={"marker": ".", "markersize": 3, "markerfacecolor": color, "markeredgecolor": "none"},
    )
    return Patch(facecolor=color, alpha=0.55, label=say_in["frame"].format(step=boxes.step))


def _bands(ax: Axes, boxes: Boxes, at: int, of: int, say_in: Mapping[str, str]) -> Any:
    color = style.SERIES[at % len(style.SERIES)]
    places = np.arange(len(boxes.quantiles))
    quantiles = boxes.quantiles.T
    ax.fill_between(places, quantiles[1], quantiles[3], color=color, alpha=0.3 if of > 1 else 0.45, linewidth=0)
    for edge in (quantiles[0], quantiles[4]):
        ax.plot(places, edge, color=color, linewidth=0.6, linestyle=":")
    (line,) = ax.plot(places, quantiles[2], color=color, linewidth=1.2, label=say_in["bands"].format(step=boxes.step))
    return line


def _edges(ax: Axes, boxes: list[Boxes], say_in: Mapping[str, str]) -> list[Any]:
    handles = []
    for state, height, flags in ((NOT_FINITE, 0.975, "broken"), (ZERO, 0.025, "zero")):
        places = [
            place - 0.4 + 0.8 / len(boxes) * (at + 0.5)
            for at, each in enumerate(boxes)
            for place in np.flatnonzero(getattr(each, flags))
        ]
        if places:
            key, color, marker = LOOKS[state]
            (line,) = ax.plot(
                places,
                np.full(len(places), height),
                transform=ax.get_xaxis_transform(),
                linestyle="none",
                marker=marker,
                color=color,
                markersize=5,
                label=say_in[key],
                clip_on=False,
                zorder=5,
            )
            handles.append(line)
    return handles
