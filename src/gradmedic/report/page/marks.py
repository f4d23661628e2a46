"""Single steps at which something was done to the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradmedic.diagnosis.rank_events import first_origins
from gradmedic.report.views.scalars import Scalars

MOST_MARKS = 2000
#: Kinds of events that are marks, and which of their texts says what happened; those first that matter most.
_EVENTS: dict[str, str] = {"halt": "reason", "stop": "reason", "origin": "name", "error": "message", "guard": "reason"}
_LONGEST = 300


def marks_of(
    scalars: Mapping[str, Scalars], events: list[dict[str, Any]], most: int = MOST_MARKS
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return what happened at single steps.

    Args:
        scalars: of each optimizer.
        events: of the run.
        most: number of marks; beyond it those that come after skips and halts are thinned evenly.

    Returns:
        (marks {"step", "optimizer", "kind", "text"}, skips and halts first and each kind in order of time; how many
        there are of each kind in all). Kinds: "skip", "clip", and those of events ("halt", "origin", "error", …).
    """
    groups: dict[str, list[dict[str, Any]]] = {kind: [] for kind in ("halt", "skip")}
    for each in scalars.values():
        for at in np.flatnonzero(each.skipped).tolist():
            groups["skip"].append(_mark(each.steps[at], each.optimizer, "skip", each.reasons.get(at, "")))
    for event in first_origins(events):
        kind = str(event.get("kind", ""))
        if kind in _EVENTS and isinstance(event.get("step"), int):
            text = event.get(_EVENTS[kind]) or event.get("message") or event.get("reason") or ""
            groups.setdefault(kind, []).append(_mark(event["step"], str(event.get("optimizer") or ""), kind, text))
    clipped = [(each, np.flatnonzero(each.clipped & ~each.skipped)) for each in scalars.values()]
    counts = {kind: len(group) for kind, group in groups.items() if group}
    total = sum(len(places) for _, places in clipped)
    if total:
        counts["clip"] = total
    marks = [mark for group in groups.values() for mark in _spread(group, most)][:most]
    room = most - len(marks)
    for each, places in clipped:
        share = max(1, room * len(places) // max(1, total)) if room else 0
        marks += [_mark(each.steps[at], each.optimizer, "clip", "") for at in _spread(places.tolist(), share)]
    return marks[:most], counts


def _mark(step: Any, optimizer: str, kind: str, text: Any) -> dict[str, Any]:
    return {"step": int(step), "optimizer": optimizer, "kind": kind, "text": str(text)[:_LONGEST]}


def _spread(entries: list[Any], most: int) -> list[Any]:
    """Return at most `most` entries, evenly spread, the first and the last among them."""
    if len(entries) <= most:
        return entries
    return (
        [entries[at] for at in np.unique(np.linspace(0, len(entries) - 1, most).astype(int)).tolist()] if most else []
    )
