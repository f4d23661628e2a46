"""How single layers change over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradmedic.diagnosis import Finding
from gradmedic.plot import style
from gradmedic.plot.canvas import axes, legend_beside, name_axes, say, steps_along, title
from gradmedic.plot.extremes import bear_extremes
from gradmedic.plot.labels import unique_labels
from gradmedic.plot.lines import at_bottom, at_top, curve, log_if_positive
from gradmedic.plot.loss import step_marks
from gradmedic.plot.scalars import shown_scalars
from gradmedic.plot.source import Drawn, findings_of, views_of
from gradmedic.plot.states import NOT_FINITE, ZERO
from gradmedic.plot.steps import Steps
from gradmedic.plot.tables import Patterns, Table, table_of
from gradmedic.plot.trouble import most_troubled, trouble_by_tensor
from gradmedic.plot.words import words

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def evolution(
    source: Drawn,
    *,
    metric: str = "norm",
    per: str = "layer",
    optimizer: str | None = None,
    layers: Patterns = "*",
    steps: Steps = None,
    k: int = 8,
    findings: Sequence[Finding] | None = None,
    ax: Axes | None = None,
    lang: str = "en",
) -> Axes:
    """Draw one statistic of some layers over the steps.

    Strokes along the lower edge mark clipped and skipped steps; crosses at the upper edge values that are not finite,
    triangles at the lower edge zeros that a logarithm has no place for. What was not recorded is a gap.

    Args:
        source: a `Run`, the path of a run folder, or a `Monitor`.
        metric: "norm", "max_abs", "mean_abs", "rms", "update_ratio", "weight_norm", "zero_share" or "cosine_prev".
        per: "layer" or "tensor".
        optimizer, layers, steps: what to show, see `gradient_flow`.
        k: of more rows than that only so many are drawn, >= 1: the most troubled, then some spread over the rest.
        findings: what `gm.diagnose` returned, if it is at hand; else it is called where there are more rows than `k`.
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
        ...     for _ in range(3):
        ...         model(torch.ones(4, 2)).sum().backward()
        ...         optimizer.step()
        >>> gm.plot.evolution(monitor, layers="0", metric="max_abs").get_ylabel()
        'max |g|'
    """
    say_in = words(lang)
    views = views_of(source)
    table = table_of(views, metric, per=per, optimizer=optimizer, layers=layers, steps=steps)
    ax = axes(ax, (9.0, 4.4))
    if not table.values.size:
        return say(ax, say_in["no_tables" if not len(table.names) or steps is None else "no_selected"])
    shown, headline = table, say_in["evolution"]
    if len(table.names) > max(1, k):
        trouble = trouble_by_tensor(views, findings_of(views) if findings is None else findings)
        shown = table.only(most_troubled(table, trouble, max(1, k)))
        all_sick = all(any(trouble.get(name, 0.0) > 0 for name in names) for names in shown.members)
        how_many = say_in["worst" if all_sick else "some"].format(n=len(shown.names), of=len(table.names))
        headline = f"{headline} ({how_many})"
    handles = _curves(ax, shown)
    handles += step_marks(ax, shown_scalars(views, optimizer, steps), say_in) + _edges(ax, shown, say_in)
    title(ax, headline)
    legend_beside(ax, handles, [str(handle.get_label()) for handle in handles])
    steps_along(ax, say_in["step"])
    name_axes(ax, y=say_in[metric])
    return ax


def _curves(ax: Axes, table: Table) -> list[Any]:
    if table.log:
        log_if_positive(ax, [table.values])
    bear_extremes(ax, [table.values])
    labels = unique_labels(table.names)
    return [
        curve(ax, table.steps, table.values[:, at], label=labels[at], **style.series_style(at))
        for at in range(len(table.names))
    ]


def _edges(ax: Axes, table: Table, say_in: Mapping[str, str]) -> list[Any]:
    handles = []
    for state, mark in ((NOT_FINITE, at_top), (ZERO, at_bottom)):
        hit = np.unique(table.steps[(table.states == state).any(axis=1)])
        if len(hit):
            handles.append(mark(ax, hit, say_in["nonfinite" if state == NOT_FINITE else "zero"]))
    return handles
