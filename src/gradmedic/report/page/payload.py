"""The page's data: one JSON-ready mapping for each run, the same for the report and the live page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from gradmedic.diagnosis import Finding, diagnose
from gradmedic.record import Run
from gradmedic.report.page.parts import joined, steps_part, tables_part
from gradmedic.report.views.source import Source

#: Of the payload's layout; it grows when a page of an older version could misread it.
FORMAT = 1
Payload = dict[str, Any]


def build_payload(run: Run, findings: Sequence[Finding] | None = None, *, columns: int = 600) -> Payload:
    """Return what the page shows of a run.

    Args:
        run: the run, finished or still being written.
        findings: what a diagnosis found, most likely root cause first; None judges the run now.
        columns: of heatmaps, at most; fewer where all of them together would take more than 8 MB.

    Returns:
        A mapping of strict JSON. Arrays are packed (see `pack`): in them NaN means "not recorded" and an infinity
        "recorded, and not finite"; no other number is either.

    Example:
        >>> from gradmedic.record import MemoryRecorder
        >>> build_payload(MemoryRecorder(meta={}).run)["run"]["steps"]
        0
    """
    found = list(diagnose(run)) if findings is None else list(findings)
    source = Source(run)
    parts = joined(steps_part(source, found), tables_part(source, found, columns))
    return {"format": FORMAT, "version": version_of(run, found), **parts}


def version_of(run: Run, findings: Sequence[Finding] = ()) -> str:
    """Return a text that is another one when what the page shows of a run is."""
    rows = [run.steps.num_rows, run.tensors.num_rows, run.modules.num_rows]
    events = run.events
    judged = [(each.code, each.severity, each.step, each.where, len(each.folded)) for each in findings]
    parts: list[Any] = [rows, len(events), events[-1:], run.problems, judged]
    if run.steps.num_rows:
        parts.append([run.steps[name][-1].as_py() for name in ("step", "time", "process")])
    return hashlib.sha256(json.dumps(parts, default=str).encode("utf-8", "replace")).hexdigest()[:16]
