"""A run on one page: loss with findings, norms with clipping, layers over steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradmedic.diagnosis import Finding
from gradmedic.plot.canvas import laid_out, require_matplotlib
from gradmedic.plot.clipping import clip
from gradmedic.plot.heatmap import heatmap
from gradmedic.plot.loss import loss
from gradmedic.plot.source import Drawn, views_of
from gradmedic.plot.steps import Steps
from gradmedic.plot.tables import Patterns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def overview(
    source: Drawn,
    *,
    optimizer: str | None = None,
    layers: Patterns = "*",
    steps: Steps = None,
    findings: Sequence[Finding] | None = None,
    figure: Figure | None = None,
    lang: str = "en",
) -> dict[str, Axes]:
    """Draw a run in one figure: the loss with findings, norms with clipping, and layers over steps.

    Args:
        source: a `Run`, the path of a run folder, or a `Monitor`.
        optimizer, layers, steps: what to show, see `gradient_flow`.
        findings: see `loss`.
        figure: an empty figure to draw in, best one with layout="constrained"; by default a new one.
        lang: "en" or "zh".

    Returns:
        The axes, by "loss", "clip" and "heatmap"; their figure is `axes["loss"].figure`.

    Raises:
        InputError: matplotlib is missing, there is no such run, or an argument is not as described.

    Example:
        >>> import torch, gradmedic as gm
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with gm.watch(model, optimizer) as monitor:
        ...     for _ in range(3):
        ...         model(torch.ones(4, 2)).square().sum().backward()
        ...         optimizer.step()
        >>> sorted(gm.plot.overview(monitor))
        ['clip', 'heatmap', 'loss']
    """
    views = views_of(source)
    require_matplotlib()
    if figure is None:
        from matplotlib import pyplot

        figure = laid_out(pyplot.figure(figsize=(10.0, 9.5), layout="constrained"))
    first, second, third = figure.subplots(3, 1, height_ratios=(1.0, 1.0, 1.5))
    loss(views, optimizer=optimizer, steps=steps, findings=findings, ax=first, lang=lang)
    clip(views, optimizer=optimizer, steps=steps, ax=second, lang=lang)
    heatmap(views, optimizer=optimizer, layers=layers, steps=steps, ax=third, lang=lang)
    return {"loss": first, "clip": second, "heatmap": third}
