"""A monitor at a glance: whether it still watches, what that costs, and the run so far."""

from __future__ import annotations

from typing import Any

from gradmedic.report.notebook.markup import FAINT
from gradmedic.report.notebook.run_html import run_html


def monitor_html(monitor: Any) -> str:
    """Return a `Monitor` as HTML; what is pending is read first, as for `monitor.run`.

    Example:
        >>> import torch, gradmedic as gm
        >>> with gm.watch(torch.nn.Linear(2, 1)) as monitor:
        ...     "watching" in monitor_html(monitor)
        True
    """
    state = "closed" if monitor.closed else "watching"
    cost = monitor.overhead
    told = f"{state}" if monitor.closed else f"{state} · {cost.share:.1%} of the time since it began is ours"
    return f'<div><b>monitor</b> <span style="{FAINT}">{told}</span></div>{run_html(monitor.run)}'
