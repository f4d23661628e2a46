"""GM104 frozen-model: nearly everything is frozen and the rest cannot learn, or nothing is trainable at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.view import View
from gradmedic.facts import ParameterFact
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """When freezing is more than a choice."""

    frozen_share: float = 0.9
    """Share of elements that are frozen (rules.md)."""
    steps: int = 100
    """Steps without a falling loss, before a frozen model is blamed for it."""


class FrozenModel:
    """Freezing that went too far. Adapters and heads on a frozen backbone train matrices, and are left alone."""

    code = "GM104"
    name = "frozen-model"
    kind: Kind = "invariant"
    needs: frozenset[str] = frozenset()

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at step 3, every 50 steps, and at the end."""
        steps = view.history.steps
        if view.facts is None or not (view.final or steps == 3 or steps % 50 == 0):
            return
        facts = view.facts.parameters.values()
        total = sum(fact.numel for fact in facts)
        frozen = [fact for fact in facts if not fact.trainable]
        share = sum(fact.numel for fact in frozen) / total if total else 0.0
        if len(frozen) == len(view.facts.parameters) and frozen:
            yield self._draft("critical", 0.95, share, frozen, "all")
        elif share > self.thresholds.frozen_share and self._starved(view):
            yield self._draft("warning", 0.6, share, frozen, "starved")
        owned = [fact for fact in frozen if fact.optimizer is not None]
        if owned and len(owned) < len(view.facts.parameters):
            yield self._draft("info", 0.9, share, owned, "owned")

    def _starved(self, view: View) -> bool:
        """Whether only biases and norms train, and the loss does not fall for it."""
        assert view.facts is not None
        trained = [fact for fact in view.facts.parameters.values() if fact.trainable]
        only_vectors = bool(trained) and all(len(fact.shape) < 2 for fact in trained)
        return only_vectors and view.harm.reason == "not_falling" and view.history.steps >= self.thresholds.steps

    def _draft(
        self, severity: Severity, confidence: float, share: float, facts: list[ParameterFact], variant: str
    ) -> Draft:
        return Draft(
            severity=severity,
            confidence=confidence,
            step=0,
            where=tuple(fact.name for fact in facts),
            evidence=(Evidence("share of elements that are frozen", share, self.thresholds.frozen_share, ""),),
            params={"share": 100 * share, "n": len(facts)},
            variant=variant,
            key="owned" if variant == "owned" else "",
            optimizer="",
        )
