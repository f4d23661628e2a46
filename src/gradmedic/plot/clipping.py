"""What clipping does: the norm before and after, the threshold, how often it is exceeded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gradmedic.plot import style
from gradmedic.plot.canvas import axes, head, name_axes, say, steps_along
from gradmedic.plot.labels import label
from gradmedic.plot.lines import at_top, broken_at_restarts, curve, log_if_positive, ticks_along
from gradmedic.plot.scalars import Shown, shown_scalars
from gradmedic.plot.source import Drawn, views_of
from gradmedic.plot.steps import Steps
from gradmedic.plot.words import words
from gradmedic.report.views import clip_rate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes


def clip(
    source: Drawn,
    *,
    optimizer: str | None = None,
    steps: Steps = None,
    rate: bool = True,
    ax: Axes | None = None,
    lang: str = "en",
) -> Axes:
    """Draw the gradient norm before and after clipping, the threshold, and the share of steps that were clipped.

    A threshold that nearly every step exceeds sets the learning rate; one that none does is of no use. Strokes along
    the lower edge are steps that were skipped, crosses at the upper edge norms that are not finite.

    Args:
        source: a `Run`, the path of a run folder, or a `Monitor`.
        optimizer: whose steps; by default the first one's that has any.
        steps: which steps, see `gradient_flow`.
        rate: also draw the share of clipped steps among the last 50, on an axis at the right.
        ax: axes to draw on; by default those of a new figure.
        lang: "en" or "zh".

    Returns:
        The axes with the norms.

    Raises:
        InputError: matplotlib is missing, or there is no such run, optimizer or language.

    Example:
        >>> import torch, gradmedic as gm
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with gm.watch(model, optimizer) as monitor:
        ...     for _ in range(3):
        ...         model(torch.ones(4, 2)).sum().backward()
        ...         optimizer.step()
        >>> gm.plot.clip(monitor).get_xlabel()
        'step'
    """
    say_in = words(lang)
    views = views_of(source)
    ax = axes(ax, (8.0, 4.2))
    found = shown_scalars(views, optimizer, steps)
    shown = next((each for each in found if np.any(~np.isnan(each.norm)) or each.skipped.any()), None)
    if shown is None:
        return say(ax, say_in["no_norm" if found else "no_steps"])
    handles = _norms(ax, shown, say_in)
    clips = bool(np.isfinite(shown.threshold).any() | shown.clipped.any())
    if rate and clips:
        handles.append(_rate(ax, shown, say_in))
    name = say_in["clip" if clips else "unclipped"]
    head(ax, f"{name}: {label(shown.optimizer)}" if len(views.optimizers) > 1 else name, handles)
    steps_along(ax, say_in["step"])
    name_axes(ax, y=say_in["norm"])
    return ax


def _norms(ax: Axes, shown: Shown, say_in: Mapping[str, str]) -> list[Any]:
    log_if_positive(ax, [shown.norm, shown.norm_post])
    handles: list[Any] = [curve(ax, shown.steps, shown.norm, color=style.MAIN, label=say_in["before"], zorder=2.4)]
    if np.any(np.isfinite(shown.norm_post) & (shown.norm_post != shown.norm)):
        # Wide and below: where nothing was clipped both are the same.
        wide = {"color": style.AFTER, "linewidth": 2.6, "zorder": 2.2}
        handles.append(curve(ax, shown.steps, shown.norm_post, label=say_in["after"], **wide))
    if np.isfinite(shown.threshold).any():
        places, values = broken_at_restarts(shown.steps, shown.threshold)
        (line,) = ax.plot(
            places,
            values,
            color=style.THRESHOLD,
            linestyle="--",
            linewidth=1.2,
            label=say_in["threshold"],
            zorder=2.6,
        )
        handles.append(line)
    return handles + edge_marks(ax, shown, shown.norm, say_in)


def edge_marks(ax: Axes, shown: Shown, values: Any, say_in: Mapping[str, str]) -> list[Any]:
    """Mark steps that were skipped (lower edge), and those whose value [S] is not finite (upper edge)."""
    handles = []
    if shown.skipped.any():
        skipped = shown.steps[shown.skipped]
        handles.append(ticks_along(ax, skipped, 0, color=style.SKIPPED, label=say_in["skipped"]))
    broken = np.isinf(values)
    if broken.any():
        handles.append(at_top(ax, shown.steps[broken], say_in["nonfinite"]))
    return handles


def _rate(ax: Axes, shown: Shown, say_in: Mapping[str, str]) -> Any:
    right = ax.twinx()
    line = curve(
        right, shown.steps, clip_rate(shown.clipped), color=style.RATE, linewidth=1.0, alpha=0.8, label=say_in["rate"]
    )
    right.set_ylim(-0.02, 1.02)
    right.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    right.tick_params(axis="y", colors="0.45", labelsize="small")
    # The norms are what the figure is about: they lie above the rate.
    ax.set_zorder(right.get_zorder() + 1)
    ax.patch.set_visible(False)
    return line
