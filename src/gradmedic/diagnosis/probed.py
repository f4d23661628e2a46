"""What active probes have found, as rules read it; see `gradmedic.probing`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gradmedic.diagnosis.view import View


def verdicts(view: View, probe: str, *wanted: str) -> Iterator[Mapping[str, Any]]:
    """Yield the events of one probe since the last frame.

    Args:
        view: the present.
        probe: "line", "batch", "input", "overfit" or "future".
        wanted: verdicts that count; none for all.
    """
    for event in view.events:
        found = event.get("kind") == "probe" and event.get("probe") == probe
        if found and (not wanted or event.get("verdict") in wanted):
            yield event
