"""GM103 not-in-optimizer: gradients flow into a trainable parameter that no optimizer owns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.view import View
from gradmedic.facts import ParameterFact


@dataclass(frozen=True)
class Thresholds:
    """How long to wait for an owner."""

    steps: int = 10
    """An optimizer may be met only when it first steps: a WGAN's generator steps every fifth time by default."""


class NotInOptimizer:
    """Parameters that pay for a gradient and never move."""

    code = "GM103"
    name = "not-in-optimizer"
    kind: Kind = "invariant"
    needs: frozenset[str] = frozenset()

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look once enough steps are made, then every 50, and at the end."""
        steps = view.history.steps
        if view.facts is None or steps < self.thresholds.steps:
            return
        if not view.final and steps != self.thresholds.steps and steps % 50:
            return
        facts = view.facts.parameters.values()
        # A bare tensor beside modules is an input whose gradient was wanted: collocation points, adversarial images.
        bare_trains = any(not fact.kind and fact.optimizer is not None for fact in facts)
        loose = [
            fact
            for fact in facts
            if fact.trainable
            and fact.optimizer is None
            and fact.received
            and fact.numel > 0
            and (fact.kind or bare_trains)
        ]
        if not loose:
            return
        trained = sum(fact.numel for fact in view.facts.parameters.values() if _is_trained(fact))
        untrained = sum(fact.numel for fact in loose)
        share = untrained / (trained + untrained)
        yield Draft(
            severity="error" if not trained else "warning",
            confidence=0.85,
            step=0,
            where=tuple(fact.name for fact in loose),
            evidence=(
                Evidence("parameters without an optimizer", len(loose), 0, "tensors"),
                Evidence("share of all elements with gradients", share, 0.0, ""),
            ),
            params={"n": len(loose), "share": 100 * share},
            variant="all" if not trained else "",
            optimizer="",
        )

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when an optimizer has come for one of them."""
        if view.facts is None:
            return True
        known = view.facts.parameters
        return not any(name in known and known[name].optimizer is not None for name in finding.where)


def _is_trained(fact: ParameterFact) -> bool:
    """Whether an optimizer owns it and it takes gradients: what is frozen, or out of the loss's reach, counts for none.

    Where nobody has looked whether a gradient came (a compiled graph), the owner is believed.
    """
    if fact.optimizer is None or not fact.trainable:
        return False
    return bool(fact.received or fact.reached) or (fact.received is None and fact.reached is None)
