"""GM512 padding-dominates: most of the token ids that the model is fed are one and the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import still_harmed
from gradmedic.diagnosis.view import View
from gradmedic.facts import InputFact
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """SageMaker Debugger's NLPSequenceRatio: more than 50 %."""

    share: float = 0.5
    batches: int = 2
    """Batches in which it was seen."""
    distinct: float = 8.0
    """Ids reach at least this value: masks and segment ids are integers too."""


class PaddingDominates:
    """Integer inputs of the first steps."""

    code = "GM512"
    name = "padding-dominates"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    period = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look every 10 tables, at the first steps and at the end."""
        if view.facts is None or not (view.due(self.period) or view.history.steps <= 3):
            return
        by_name: dict[str, list[InputFact]] = {}
        for entry in view.facts.inputs:
            if entry.mode_share is not None and entry.maximum >= self.thresholds.distinct:
                by_name.setdefault(entry.name, []).append(entry)
        for name, entries in by_name.items():
            share = median([entry.mode_share or 0.0 for entry in entries])
            if len(entries) >= self.thresholds.batches and share > self.thresholds.share:
                yield self._draft(view, name, share, entries[0])

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all."""
        return still_harmed(finding, view)

    def _draft(self, view: View, name: str, share: float, first: InputFact) -> Draft:
        severity: Severity = "warning" if view.harm else "info"
        return Draft(
            severity=severity,
            confidence=0.6 if view.harm else 0.5,
            step=first.step,
            where=(name,),
            evidence=(Evidence("share of the most frequent id", share, self.thresholds.share),),
            params={
                "share": 100 * share,
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
            key=name,
        )
