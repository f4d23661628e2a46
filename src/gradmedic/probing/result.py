"""What an active probe has found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The outcome of one probe.

    Attributes:
        probe: "line", "batch", "input", "overfit" or "future"; "all" where none could be made.
        verdict: what was found, in a word (see the probe's own file); "needs" where it could not be made, "failed"
            where the loss could not be computed.
        numbers: what was measured.
        reason: what was missing, for "needs" and "failed".
    """

    probe: str
    verdict: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    def to_event(self, step: int, optimizer: str) -> dict[str, Any]:
        """Return the event of kind "probe" that the record keeps."""
        event: dict[str, Any] = {"kind": "probe", "probe": self.probe, "verdict": self.verdict, "step": step}
        event |= {"optimizer": optimizer, "numbers": dict(self.numbers)}
        return {**event, "reason": self.reason} if self.reason else event

    def __str__(self) -> str:
        """Return one line: `line: descends (loss 2.3, loss_at_1 2.2)`."""
        listed = ", ".join(f"{key} {value:.4g}" for key, value in self.numbers.items() if math.isfinite(value))
        return f"{self.probe}: {self.verdict} ({self.reason or listed})"
