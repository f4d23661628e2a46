"""Layers by steps: one colour a cell, and colours of their own for what is no number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gradmedic.plot import style
from gradmedic.plot.canvas import axes, head, inches, say, steps_along
from gradmedic.plot.cells import Cells, fitted
from gradmedic.plot.labels import keep_plain
from gradmedic.plot.module_tables import MODULE_METRICS, module_table
from gradmedic.plot.rows_axis import name_rows
from gradmedic.plot.source import Drawn, views_of
from gradmedic.plot.states import LOOKS, NOT_FINITE
from gradmedic.plot.steps import Steps
from gradmedic.plot.tables import Patterns, table_of
from gradmedic.plot.words import words
from gradmedic.record.arrays import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Cells to an inch: more would be smaller than a point, and what stands out would be lost between them.
_CELLS = 72
#: Of so many columns with something that is not finite each gets a mark of its own.
_MARKED = 30
#: Decades that the colours span without a second thought.
_DECADES = 6.0


def heatmap(
    source: Drawn,
    *,
    metric: str = "norm",
    per: str = "layer",
    optimizer: str | None = None,
    layers: Patterns = "*",
    steps: Steps = None,
    ax: Axes | None = None,
    lang: str = "en",
) -> Axes:
    """Draw a statistic of every layer (rows, input at the top) at every recorded step (columns).

    NaN and infinity, zero, "no gradient", "not visible", "unused", "frozen" and "not recorded" have colours of their
    own, named in a legend. Where there are more steps or layers than points, each cell shows the value of its stretch
    that lies farthest from the layer's median, one that is not finite before all others: spikes stay.

    Args:
        source: a `Run`, the path of a run folder, or a `Monitor`.
        metric: of gradients, "norm", "max_abs", "mean_abs", "rms", "update_ratio", "weight_norm", "zero_share",
            "cosine_prev"; of modules at the sampled steps, "activation_rms", "activation_zero", "output_grad".
        per: "layer" or "tensor"; modules are always by module.
        optimizer, layers, steps: what to show, see `gradient_flow`.
        ax: axes to draw on; by default those of a new figure.
        lang: "en" or "zh".

    Returns:
        The axes; the colour bar stands at their right.

    Raises:
        InputError: matplotlib is missing, there is no such run, or an argument is not as described.

    Example:
        >>> import torch, gradmedic as gm
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with gm.watch(model, optimizer) as monitor:
        ...     for _ in range(3):
        ...         model(torch.ones(4, 2)).sum().backward()
        ...         optimizer.step()
        >>> ax = gm.plot.heatmap(monitor)
        >>> [tick.get_text() for tick in ax.get_yticklabels()]
        ['0', '2']
    """
    say_in = words(lang)
    views = views_of(source)
    if metric in MODULE_METRICS:
        table = module_table(views, metric, optimizer=optimizer, layers=layers, steps=steps)
    else:
        table = table_of(views, metric, per=per, optimizer=optimizer, layers=layers, steps=steps)
    ax = axes(ax, (9.0, 4.8))
    if not table.values.size:
        key = "no_column" if metric in MODULE_METRICS else "no_tables"
        known = not len(table.names) or steps is None
        return say(ax, say_in[key if known else "no_selected"].format(what=say_in[metric]))
    width, height = inches(ax)
    cells = fitted(table, max(1, int(_CELLS * width)), max(1, int(_CELLS * height)))
    _draw_numbers(ax, cells, say_in[metric], say_in)
    handles = _draw_states(ax, cells, say_in)
    head(ax, f"{say_in['heatmap']}: {say_in[metric]}", handles)
    # The first row at the top; more rows than points were taken together, so that names lie between whole numbers.
    ax.set_ylim(len(table.names) - 0.5, -0.5)
    ax.set_xlim(cells.step_edges[0], cells.step_edges[-1])
    name_rows(ax, table.names, table.blocks, "y")
    steps_along(ax, say_in["step"])
    return ax


def _draw_numbers(ax: Axes, cells: Cells, what: str, say_in: Mapping[str, str]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    values = np.log10(cells.values) if cells.log else cells.values
    known = values[np.isfinite(values)]
    low, high, extend = _limits(known, log=cells.log)
    picture = ax.pcolorfast(
        cells.step_edges,
        cells.row_edges,
        np.ma.masked_invalid(values),
        cmap=style.COLORMAP,
        norm=Normalize(low, high),
    )
    _sharp(picture)
    colors = ScalarMappable(Normalize(low, high), style.COLORMAP)
    bar = ax.figure.colorbar(colors, ax=ax, pad=0.015, fraction=0.05, extend=extend)
    bar.set_label(say_in["log"].format(what=what) if cells.log else what)
    keep_plain([bar.ax.yaxis.label])


def _limits(known: Array, *, log: bool) -> tuple[float, float, str]:
    """Return the range of the colours and whether values lie beyond: all that is there, unless it is decades more than
    what all but 2 % of the cells take: a single explosion would leave one colour to the rest.
    """
    if not len(known):
        return 0.0, 1.0, "neither"
    low, high = float(known.min()), float(known.max())
    if log and high - low > _DECADES:
        inner = np.quantile(known, (0.02, 0.98))
        below, above = low < inner[0] - 1, high > inner[1] + 1
        low, high = float(inner[0]) if below else low, float(inner[1]) if above else high
        extend = {(True, True): "both", (True, False): "min", (False, True): "max"}.get((below, above), "neither")
    else:
        extend = "neither"
    return (low, high, extend) if high > low else (low - 0.5, high + 0.5, extend)


def _draw_states(ax: Axes, cells: Cells, say_in: Mapping[str, str]) -> list[Any]:
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.patches import Patch

    present = [state for state in LOOKS if (cells.states == state).any()]
    if not present:
        return []
    colors = ListedColormap([LOOKS[state][1] for state in LOOKS])
    first, last = min(LOOKS), max(LOOKS)
    hidden = np.ma.masked_equal(cells.states.astype(float), 0.0)
    _sharp(
        ax.pcolorfast(cells.step_edges, cells.row_edges, hidden, cmap=colors, norm=Normalize(first - 0.5, last + 0.5))
    )
    _point_at_broken(ax, cells)
    return [Patch(facecolor=LOOKS[state][1], label=say_in[LOOKS[state][0]]) for state in present]


def _point_at_broken(ax: Axes, cells: Cells) -> None:
    """Point from above at the columns that hold something not finite: one cell among thousands is easily overlooked."""
    columns = np.flatnonzero((cells.states == NOT_FINITE).any(axis=0))
    if not 0 < len(columns) <= min(_MARKED, 1 + cells.states.shape[1] // 10):
        return
    places = (cells.step_edges[columns] + cells.step_edges[columns + 1]) / 2
    ax.plot(
        places,
        np.full(len(places), 1.015),
        transform=ax.get_xaxis_transform(),
        linestyle="none",
        marker="v",
        markersize=4,
        color=style.NONFINITE,
        clip_on=False,
    )


def _sharp(picture: Any) -> None:
    """Draw cells as they are: blended with their neighbours, states would become other states."""
    if hasattr(picture, "set_interpolation"):
        picture.set_interpolation("nearest")
