"""GM505 high-initial-loss: before it has learned anything, the classifier is confident, and wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import still_harmed
from gradmedic.diagnosis.view import View
from gradmedic.facts import LossFact
from gradmedic.types import Severity

_KINDS = ("cross_entropy", "bce", "bce_with_logits")


@dataclass(frozen=True)
class Thresholds:
    """TheDeepChecker: the first loss within 100 % of ln K."""

    ratio: float = 2.0
    """First loss over that of even chances."""
    count: int = 8
    """Fewer targets make no average."""


class HighInitialLoss:
    """The loss of the first step, beside the loss of a guess."""

    code = "GM505"
    name = "high-initial-loss"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    period = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look every 10 tables, at the first steps and at the end."""
        if view.facts is None or not (view.due(self.period) or view.history.steps <= 3):
            return
        for loss in view.facts.losses:
            if loss.step == 0 and loss.kind in _KINDS and not loss.weighted:
                draft = self._judge(view, loss)
                if draft is not None:
                    yield draft

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all."""
        return still_harmed(finding, view)

    def _judge(self, view: View, loss: LossFact) -> Draft | None:
        limits, numbers = self.thresholds, loss.numbers
        classes, first = numbers.get("classes", 0.0), numbers.get("loss", math.nan)
        if classes < 2 or numbers.get("count", 0.0) < limits.count:
            return None
        chance = math.log(classes)
        if not first > limits.ratio * chance:
            return None
        severity: Severity = "warning" if view.harm else "info"
        return Draft(
            severity=severity,
            confidence=0.7 if view.harm else 0.5,
            step=0,
            where=(loss.module,) if loss.module else (),
            evidence=(
                Evidence("first loss over that of even chances", first / chance, limits.ratio),
                Evidence("loss, of one step", first, chance),
            ),
            params={
                "loss": first,
                "chance": chance,
                "classes": int(classes),
                "times": first / chance,
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
            key=loss.module,
        )
