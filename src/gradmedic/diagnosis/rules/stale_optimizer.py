"""GM105 stale-optimizer: the optimizer holds tensors that the model no longer has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.view import View


class StaleOptimizer:
    """The model was copied, re-wrapped or re-created after the optimizer was built.

    A tensor that no watched model has may belong to a model that is not watched. It is stale only when the model has
    a trainable twin of the same shape that no optimizer owns.
    """

    code = "GM105"
    name = "stale-optimizer"
    kind: Kind = "invariant"
    needs: frozenset[str] = frozenset()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at once, and again whenever more is known."""
        if view.facts is None or not view.facts.stale:
            return
        by_optimizer: dict[str, list[dict[str, Any]]] = {}
        for entry in view.facts.stale:
            if self._orphaned(view, entry.get("twin")):
                by_optimizer.setdefault(str(entry.get("optimizer", "")), []).append(entry)
        for optimizer, entries in by_optimizer.items():
            held = int(view.facts.optimizers.get(optimizer, {}).get("tensors", 0) or len(entries))
            every = len(entries) >= held
            yield Draft(
                severity="critical" if every else "error",
                confidence=0.95,
                step=view.frame.step if view.history.steps == 1 else 0,
                where=tuple(str(entry["twin"]) for entry in entries),
                evidence=(Evidence("tensors that no watched model has", len(entries), 0, "tensors"),),
                params={"n": len(entries), "held": held},
                optimizer=optimizer,
            )

    def _orphaned(self, view: View, twin: Any) -> bool:
        fact = view.facts.parameters.get(twin) if view.facts and isinstance(twin, str) else None
        return fact is not None and fact.trainable and fact.optimizer is None
