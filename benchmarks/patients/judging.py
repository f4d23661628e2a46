"""What gradmedic says of a record, and at which step each finding could first be said."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gradmedic.diagnosis.engine import Engine
from gradmedic.diagnosis.finding import Finding, rank_of
from gradmedic.diagnosis.replay import Recorded, merged
from gradmedic.frame import Frame
from gradmedic.record import Run

#: Places of one finding that are kept.
MAX_PLACES = 32
WARNING = rank_of("warning")
#: Steps that are left out of the cost: imports, compilation and the first graph walks.
_WARM_UP = 10

#: Where a finding was made: (step of the frame, the finding as it was then).
Made = tuple[int, Finding]


def judgement(run: Run) -> dict[str, Any]:
    """Diagnose a run.

    Returns:
        {"findings": as `compact` writes them, best first; "steps": of all optimizers; "overhead": gradmedic's own
        account of its share of the step time, None when unknown; "problems": what could not be read}. Strict JSON.
    """
    findings, made = replayed(run)
    return {
        "findings": [compact(finding, made) for finding in findings],
        "steps": run.steps.num_rows,
        "overhead": overhead(run),
        "problems": list(run.problems),
    }


def replayed(run: Recorded) -> tuple[list[Finding], list[Made]]:
    """Feed a run to a fresh engine, as it happened.

    Returns:
        (the findings in the end, what was made when: one entry for each finding that a frame brought or made worse).
    """
    engine = Engine(lang="en", limits=run.meta.get("limits"))
    made: list[Made] = []
    last = 0
    for entry in merged(run.events, run.frames()):
        if isinstance(entry, Frame):
            last = entry.step
            made += [(entry.step, finding) for finding in engine.on_frame(entry)]
        else:
            engine.on_event(entry)
    made += [(last, finding) for finding in engine.finish()]
    return engine.findings(), made


def first_said(finding: Finding, made: Iterable[Made]) -> int:
    """Return the step of the frame at which a finding was first made, for one above "info" at "warning" or above."""
    least = min(WARNING, rank_of(finding.severity))
    same = [
        step
        for step, other in made
        if (other.code, other.optimizer) == (finding.code, finding.optimizer) and rank_of(other.severity) >= least
    ]
    return min(same, default=finding.step)


def compact(finding: Finding, made: Iterable[Made]) -> dict[str, Any]:
    """Return a finding as strict JSON without its words."""
    data = finding.to_json()
    return {
        "code": finding.code,
        "severity": finding.severity,
        "confidence": data["confidence"],
        "step": finding.step,
        "made": first_said(finding, made),
        "variant": finding.variant,
        "where": list(finding.where[:MAX_PLACES]),
        "evidence": [[each["name"], each["value"], each["threshold"]] for each in data["evidence"]],
        "actions": [each.action for each in finding.remedies if each.action],
        "folded": [{"code": each.code, "severity": each.severity, "step": each.step} for each in finding.folded],
    }


def overhead(run: Run) -> float | None:
    """Return gradmedic's own time over the wall time of the steps, the first ten left out; None without any."""
    own, whole = run.series("overhead_seconds")[_WARM_UP:], run.series("step_seconds")[_WARM_UP:]
    known = np.isfinite(own) & np.isfinite(whole)
    total = float(whole[known].sum())
    return round(float(own[known].sum()) / total, 4) if total > 0 else None
