"""The loss, with what was found and what was done about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradmedic.diagnosis import Finding
from gradmedic.diagnosis.engine import in_language
from gradmedic.plot import style
from gradmedic.plot.canvas import axes, head, name_axes, say, steps_along
from gradmedic.plot.extremes import bear_extremes
from gradmedic.plot.findings_marks import mark_findings
from gradmedic.plot.labels import label
from gradmedic.plot.lines import at_top, curve, log_if_positive, ticks_along
from gradmedic.plot.scalars import Shown, shown_scalars
from gradmedic.plot.source import Drawn, findings_of, views_of
from gradmedic.plot.steps import Steps
from gradmedic.plot.words import words
from gradmedic.report.views import Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

#: From this ratio of the largest to the smallest loss on, a logarithmic axis shows more.
_LOG_FROM = 30.0


def loss(
    source: Drawn,
    *,
    optimizer: str | None = None,
    steps: Steps = None,
    findings: Sequence[Finding] | None = None,
    ax: Axes | None = None,
    lang: str = "en",
) -> Axes:
    """Draw the loss of every step, with findings, clipped and skipped steps marked.

    A numbered line stands where a finding begins, strokes along the lower edge are clipped and skipped steps, crosses
    at the upper edge losses that are not finite. The axis is logarithmic where the loss spans more than a factor of 30.

    Args:
        source: a `Run`, the path of a run folder, or a `Monitor`.
        optimizer: whose steps; by default one curve for each.
        steps: which steps, see `gradient_flow`.
        findings: what `gm.diagnose` returned, if it is at hand; `[]` for none. By default it is called.
        ax: axes to draw on; by default those of a new figure.
        lang: "en" or "zh".

    Returns:
        The axes.

    Raises:
        InputError: matplotlib is missing, or there is no such run, optimizer or language.

    Example:
        >>> import torch, gradmedic as gm
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with gm.watch(model, optimizer) as monitor:
        ...     for _ in range(3):
        ...         model(torch.ones(4, 2)).square().sum().backward()
        ...         optimizer.step()
        >>> gm.plot.loss(monitor).get_ylabel()
        'loss'
    """
    say_in = words(lang)
    views = views_of(source)
    ax = axes(ax, (9.0, 4.0))
    found = shown_scalars(views, optimizer, steps)
    known = [each for each in found if not np.isnan(each.loss).all()]
    if not known:
        return say(ax, say_in["no_loss" if found else "no_steps"])
    _scale(ax, known)
    handles = [_curve(ax, each, at, len(known), say_in) for at, each in enumerate(known)]
    handles += step_marks(ax, found, say_in)
    broken = np.concatenate([each.steps[np.isinf(each.loss)] for each in known])
    if len(broken):
        handles.append(at_top(ax, broken, say_in["nonfinite"]))
    listed = shown_findings(views, findings, known, say_in["lang"])
    handles += mark_findings(ax, listed, say_in)
    head(ax, say_in["loss_title"], handles)
    steps_along(ax, say_in["step"])
    name_axes(ax, y=say_in["loss"])
    return ax


def step_marks(ax: Axes, found: Sequence[Shown], say_in: Mapping[str, str]) -> list[Any]:
    """Mark clipped and skipped steps along the lower edge; return handles for the legend."""
    handles = []
    for row, key, color in ((0, "clipped", style.CLIPPED), (1, "skipped", style.SKIPPED)):
        places = np.unique(np.concatenate([np.zeros(0), *(each.steps[getattr(each, key)] for each in found)]))
        if len(places):
            handles.append(ticks_along(ax, places, row, color=color, label=say_in[key]))
    return handles


def shown_findings(
    views: Source, findings: Sequence[Finding] | None, shown: Sequence[Shown], lang: str
) -> list[Finding]:
    """Return the findings that begin among the shown steps, in a language; None has the run diagnosed."""
    made = findings_of(views, lang) if findings is None else findings
    first = min(int(each.steps.min()) for each in shown)
    last = max(int(each.steps.max()) for each in shown)
    return [each if each.lang == lang else in_language(each, lang) for each in made if first <= each.step <= last]


def _scale(ax: Axes, known: Sequence[Shown]) -> None:
    values = np.concatenate([each.loss for each in known])
    finite = values[np.isfinite(values)]
    positive = finite[finite > 0]
    if len(positive) and len(positive) == len(finite) and finite.max() / _LOG_FROM > finite.min():
        log_if_positive(ax, [finite])
    bear_extremes(ax, [finite])


def _curve(ax: Axes, shown: Shown, at: int, of: int, say_in: Mapping[str, str]) -> Any:
    name = label(shown.optimizer) if of > 1 else say_in["loss"]
    return curve(ax, shown.steps, shown.loss, label=name, **style.series_style(at))
