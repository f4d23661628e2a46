"""A run at a glance: how long, how large, the course of loss and norm, what was found while it ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gradmedic.record import Run
from gradmedic.record.arrays import Array
from gradmedic.report.notebook.markup import BROKEN, FAINT, box, escaped, heading, name, number, severity, table
from gradmedic.report.notebook.sparkline import sparkline
from gradmedic.report.page.verdict import recorded_findings
from gradmedic.report.views import Scalars, Source, scalars_of

#: Optimizers, findings and problems that are shown.
_SHOWN = 6


def run_html(run: Run) -> str:
    """Return a run as HTML.

    It reads the scalars of all steps, and judges nothing: findings are those that were made while it trained, ranked
    and folded (`gm.diagnose(run)` judges anew).

    Example:
        >>> from gradmedic.record import MemoryRecorder
        >>> "no step" in run_html(MemoryRecorder(meta={}).run)
        True
    """
    source = Source(run)
    found = scalars_of(source)
    steps = sum(len(each.steps) for each in found.values())
    title = "run in memory" if run.path is None else name(Path(run.path).name)
    facts = source.facts.parameters.values() if source.facts is not None else ()
    trainable = [fact for fact in facts if fact.trainable]
    beside = f"{steps:,} steps" if steps else "no step was recorded"
    if trainable:
        beside += f" · {len(trainable):,} tensors · {sum(fact.numel for fact in trainable):,} parameters"
    parts = [heading(title, beside)]
    if found:
        rows = [_row(each) for each in list(found.values())[:_SHOWN]]
        parts.append(table(["optimizer", "loss", "", "gradient norm", "", "clipped", "skipped"], rows))
    parts += _findings(run.events) + _problems(run.problems)
    return box(*parts)


def _row(scalars: Scalars) -> list[str]:
    loss, norm = scalars.columns["loss"], scalars.columns["grad_norm"]
    count = max(1, len(scalars.steps))
    return [
        name(scalars.optimizer),
        sparkline(loss, "loss"),
        _ends(loss),
        sparkline(norm, "gradient norm", "#b8790b"),
        _ends(norm),
        f"{scalars.clipped.sum() / count:.0%}",
        str(int(scalars.skipped.sum())),
    ]


def _ends(values: Array) -> str:
    """Return first and last of what is known; infinity stands for any value that is not finite."""
    known = values[~np.isnan(values)]
    if not len(known):
        return f'<span style="{FAINT}">not recorded</span>'
    first, last = (
        number(float(value)) if np.isfinite(value) else f'<b style="color:{BROKEN}">not finite</b>'
        for value in known[[0, -1]]
    )
    return f'<span style="white-space:nowrap">{first} → {last}</span>'


def _findings(events: list[dict[str, Any]]) -> list[str]:
    found = recorded_findings(events)
    lines = [
        f"<div>{severity(each.severity, each.severity)} {escaped(each.code)} "
        f"{escaped((each.title or each.name)[:200])} "
        f'<span style="{FAINT}">step {each.step}</span></div>'
        for each in found[:_SHOWN]
    ]
    if len(found) > _SHOWN:
        lines.append(f'<div style="{FAINT}">and {len(found) - _SHOWN} more findings</div>')
    return lines


def _problems(problems: list[str]) -> list[str]:
    lines = [f'<div style="color:{BROKEN}">{escaped(problem[:400])}</div>' for problem in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        lines.append(f'<div style="{FAINT}">and {len(problems) - _SHOWN} more problems</div>')
    return lines
