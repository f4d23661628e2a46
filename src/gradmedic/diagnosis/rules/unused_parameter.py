"""GM101 unused-parameter: a trainable parameter that never gets a gradient, or only ever a zero one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.verdicts import has_sibling, missing, reason
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """When "never" may be said."""

    steps: int = 20
    """Steps without a gradient (rules.md: max(20 steps, one epoch up to 200))."""
    conditional_steps: int = 200
    """The same in a model in which other tensors come and go (experts, tasks in turn): the rule's upper bound."""
    solved: float = 1e-6
    """A loss below this leaves nothing to learn, so that gradients of zero are right."""
    zero_steps: int = 50
    """Steps with a gradient that is exactly zero; LoRA's A and zero-initialised residuals have one such step."""


class UnusedParameter:
    """Parameters that nothing trains, told apart by why."""

    code = "GM101"
    name = "unused-parameter"
    kind: Kind = "invariant"
    needs = frozenset({"norm"})
    period = 10
    lasting = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look every 10 tables."""
        if hidden(view):
            yield self._hidden(view)
        elif view.due(self.period) and view.facts is not None and not view.facts.optimizer_in_backward:
            yield from self._never(view)
            yield from self._zero(view)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when a parameter has had a gradient after all."""
        if finding.optimizer != view.frame.optimizer or finding.variant == "not_visible":
            return True
        counters, index = view.history.counters, view.history.index
        counts = counters.nonzero if finding.variant == "zero" else counters.seen
        return not any(name in index and counts[index[name]] for name in finding.where)

    def _never(self, view: View) -> Iterator[Draft]:
        least = self.thresholds.steps
        found = missing(view, least)
        cut = set(found.prefix.tolist())
        if found.conditional:
            found = missing(view, self.thresholds.conditional_steps)
        groups: dict[tuple[str, Severity], list[int]] = {}
        for place in found.places:
            if place in cut:
                continue  # GM102 says it better
            severity: Severity = "warning"
            if found.conditional and has_sibling(view, view.layout.names[place]):
                severity = "info"
            groups.setdefault((reason(view.layout.facts[place]), severity), []).append(place)
        for (variant, severity), places in groups.items():
            steps = int(view.history.counters.none[places].max())
            yield Draft(
                severity=severity,
                confidence=0.6 if found.conditional or variant == "unknown" else 0.9,
                step=0,
                where=view.layout.pick(np.array(places)),
                evidence=(Evidence("steps without a gradient", steps, least, "steps"),),
                params={"steps": steps, "n": len(places), "aliases": _aliases(view, places)},
                variant=variant,
                key=f"{variant}/{severity}",
            )

    def _zero(self, view: View) -> Iterator[Draft]:
        counters = view.history.counters
        conditional = bool(((counters.seen > 0) & (counters.none > 0)).any())
        least = self.thresholds.conditional_steps if conditional else self.thresholds.zero_steps
        zero = (counters.zero_run >= least) & (counters.nonzero == 0)
        zero &= np.array([fact is not None and fact.numel > 0 for fact in view.layout.facts], dtype=bool)
        # All gradients zero and no loss left: trained to the end (a hinge loss that is satisfied).
        if not zero.any() or not (counters.nonzero.any() or abs(view.loss.recent) > self.thresholds.solved):
            return
        alone = np.array([_is_spare_bias(view, place) for place in range(len(zero))], dtype=bool)
        groups: tuple[tuple[Severity, np.ndarray], ...] = (("warning", zero & ~alone), ("info", zero & alone))
        for severity, chosen in groups:
            if not chosen.any():
                continue
            places = np.flatnonzero(chosen)
            steps = int(counters.zero_run[places].max())
            yield Draft(
                severity=severity,
                confidence=0.7,
                step=0,
                where=view.layout.pick(places),
                evidence=(Evidence("steps with a gradient of exactly zero", steps, least, "steps"),),
                params={"steps": steps, "n": len(places), "aliases": ()},
                variant="zero",
                key=f"zero/{severity}",
            )

    def _hidden(self, view: View) -> Draft:
        engine = (view.facts.engine if view.facts else None) or "?"
        return Draft(
            severity="info",
            confidence=1.0,
            step=0,
            evidence=(Evidence("steps without a visible gradient", view.history.steps, 3, "steps"),),
            params={
                "engine": engine,
                "api": "@api_deepspeed" if engine == "DeepSpeed" else "@api_engine",
                "steps": view.history.steps,
                "n": 0,
                "aliases": (),
            },
            variant="not_visible",
            key="not_visible",
        )


def _is_spare_bias(view: View, place: int) -> bool:
    """Whether it is a bias that cancels out (a siamese or critic difference, a norm behind it): its weight learns."""
    fact = view.layout.facts[place]
    if fact is None or len(fact.shape) > 1:
        return False
    nonzero = view.history.counters.nonzero
    return any(
        other is not None and other.module == fact.module and other.name != fact.name and nonzero[at]
        for at, other in enumerate(view.layout.facts)
    )


def hidden(view: View) -> bool:
    """Whether gradients cannot be seen at all: an engine keeps them, so that nothing may be said of parameters."""
    history = view.history
    kept = view.facts is not None and view.facts.engine is not None
    return history.tables == 0 and (history.hidden_steps >= 3 or (kept and history.steps >= 3))


def _aliases(view: View, places: list[int]) -> tuple[str, ...]:
    facts = (view.layout.facts[place] for place in places)
    return tuple(alias for fact in facts if fact is not None for alias in fact.aliases)
