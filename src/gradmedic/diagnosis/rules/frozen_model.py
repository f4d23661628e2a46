"""GM104 frozen-model: nearly everything is frozen and the rest cannot learn, or nothing is trainable at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.view import View
from gradmedic.facts import ParameterFact
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """When freezing is more than a choice."""

    frozen_share: float = 0.9
    """Share of elements that are frozen (rules.md)."""
    idle_steps: int = 3
    """Steps of an optimizer that holds nothing that takes gradients."""
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
        if self._idle(view):
            yield self._idle_draft(view)
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

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when an optimizer that had nothing to train has had a gradient after all."""
        if finding.variant != "idle" or finding.optimizer != view.frame.optimizer:
            return True
        return self._idle(view)

    def _idle(self, view: View) -> bool:
        """Whether an optimizer holds tensors of which none takes gradients: they are no rows of its tables at all.

        A watched process knows nothing else of such a model, since models are found by the parameters that train.
        """
        assert view.facts is not None
        history, name = view.history, view.frame.optimizer
        if history.steps < self.thresholds.idle_steps or history.tables or history.empty_steps or history.hidden_steps:
            return False
        if view.facts.engine or any(entry.get("optimizer") == name for entry in view.facts.stale):
            return False
        if any(fact.optimizer == name for fact in view.facts.parameters.values()):
            return False
        held = view.facts.optimizers.get(name, {}).get("tensors")
        return bool(held) and bool(np.isnan(view.window("grad_norm", history.steps)).all())

    def _idle_draft(self, view: View) -> Draft:
        assert view.facts is not None
        held = int(view.facts.optimizers[view.frame.optimizer]["tensors"])
        return Draft(
            severity="critical" if len(view.histories) == 1 else "error",
            confidence=0.9,
            step=0,
            evidence=(
                Evidence("tensors in the optimizer that take gradients", 0, 1, "tensors"),
                Evidence("steps without any gradient", view.history.steps, self.thresholds.idle_steps, "steps"),
            ),
            params={"n": held, "steps": view.history.steps, "share": 100.0},
            variant="idle",
            key="idle",
        )

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
