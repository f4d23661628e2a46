"""GM312 output-logit-drift: the logits of the output layer wander off together, which the loss cannot see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import still_harmed
from gradmedic.diagnosis.module_rows import RowMemory, Series, recent
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """rules.md: mean |log Z| above 50, and growing."""

    log_z: float = 50.0
    growth: float = 1.5
    """Now over the least so far: an initialisation may be large, and shrinks."""
    samples: int = 3


class OutputLogitDrift:
    """Mean |logsumexp| of the output logits in the sampled steps."""

    code = "GM312"
    name = "output-logit-drift"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    sampled = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["loss"])

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled steps, and at the end."""
        if self._rows.take(view):
            for series in self._rows.series(view, "loss"):
                yield from self._judge(view, series)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all."""
        return still_harmed(finding, view)

    def _judge(self, view: View, series: Series) -> Iterator[Draft]:
        limits = self.thresholds
        values = recent(series, "log_z", len(series))
        if len(values) < limits.samples or values[-1] <= limits.log_z:
            return
        least = min(values[:-1])
        if values[-1] <= limits.growth * least or values[-1] <= values[-2]:
            return
        severity: Severity = "warning" if view.harm else "info"
        yield Draft(
            severity=severity,
            confidence=0.7 if view.harm else 0.5,
            step=next(row.step for row in series if row.get("log_z") > limits.log_z),
            where=(series[-1].module,) if series[-1].module else (),
            evidence=(Evidence("mean |log Z| of the output logits", values[-1], limits.log_z),),
            params={
                "value": values[-1],
                "least": least,
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
            key=series[-1].module,
        )
