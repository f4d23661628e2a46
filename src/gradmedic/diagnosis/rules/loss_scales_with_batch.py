"""GM503 loss-scales-with-batch: the loss is a sum, so that every gradient grows with the batch, and the run suffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import still_harmed
from gradmedic.diagnosis.view import View
from gradmedic.facts import LossFact
from gradmedic.types import Severity

#: Optimizers for which the size of a gradient cancels out.
_SCALE_FREE = ("adam", "rmsprop", "adagrad", "lamb", "adafactor", "adadelta", "lion", "sign", "muon")


@dataclass(frozen=True)
class Thresholds:
    """When a sum matters."""

    count: int = 8
    """Terms below which a sum is hardly larger than a mean."""


class LossScalesWithBatch:
    """A sum seen in the first steps; a fault where the run diverges or does not learn."""

    code = "GM503"
    name = "loss-scales-with-batch"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    period = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look every 10 tables, at the first steps and at the end."""
        if view.facts is None or not (view.due(self.period) or view.history.steps <= self.period):
            return
        for loss in view.facts.losses:
            terms = loss.numbers.get("count", 0.0)
            if loss.reduction == "sum" and not loss.normalized and terms >= self.thresholds.count:
                yield self._draft(view, loss, terms)
                return

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all."""
        return still_harmed(finding, view)

    def _draft(self, view: View, loss: LossFact, terms: float) -> Draft:
        name = view.optimizer_class.lower()
        free = any(word in name for word in _SCALE_FREE)
        harmed = bool(view.harm) and not free
        severity: Severity = "warning" if harmed else "info"
        return Draft(
            severity=severity,
            confidence=0.8 if harmed else 0.5,
            step=loss.step,
            where=(loss.module,) if loss.module else (),
            evidence=(
                Evidence("terms of the sum", terms, self.thresholds.count),
                Evidence("loss, median of 20 steps", view.loss.recent, view.loss.first),
            ),
            params={
                "terms": int(terms),
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
            variant="" if harmed else ("adaptive" if free else "note"),
            key=loss.module,
        )
