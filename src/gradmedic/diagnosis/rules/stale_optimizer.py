"""GM105 stale-optimizer: the optimizer holds tensors that the model no longer has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.view import View

#: Steps after which every optimizer has been met, so that a layer without one has none.
STEPS = 10


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
        if view.facts is None:
            return
        yield from self._replaced(view)
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
                where=tuple(dict.fromkeys(str(entry["twin"]) for entry in entries)),
                evidence=(Evidence("tensors that no watched model has", len(entries), 0, "tensors"),),
                params={"n": len(entries), "held": held},
                optimizer=optimizer,
            )

    def _replaced(self, view: View) -> Iterator[Draft]:
        """Tensors of no module that get no gradient, beside layers that do and that no optimizer has.

        A layer that was replaced by one of another shape (a head for other classes) has no twin.
        """
        if view.facts is None or not (view.history.steps == STEPS or (view.final and view.history.steps > STEPS)):
            return
        facts = view.facts.parameters.values()
        held = [fact for fact in facts if fact.optimizer == view.frame.optimizer]
        # False, not None: that nobody has looked says nothing.
        old = [fact for fact in held if not fact.kind and fact.received is False and fact.reached is False]
        new = [fact for fact in facts if fact.kind and fact.trainable and fact.received and fact.optimizer is None]
        if old and new and not view.facts.stale:
            yield Draft(
                severity="critical" if len(old) == len(held) else "error",
                confidence=0.9,
                step=0,
                where=tuple(fact.name for fact in new),
                evidence=(Evidence("tensors that no watched model has", len(old), 0, "tensors"),),
                params={"n": len(old), "held": len(held)},
                variant="replaced",
            )

    def _orphaned(self, view: View, twin: Any) -> bool:
        fact = view.facts.parameters.get(twin) if view.facts and isinstance(twin, str) else None
        return fact is not None and fact.trainable and fact.optimizer is None
