"""GM102 detached-graph: the first part of the network runs, but the loss cannot reach it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.verdicts import missing
from gradmedic.diagnosis.view import View


@dataclass(frozen=True)
class Thresholds:
    """When a cut may be named."""

    walked_steps: int = 3
    """Steps, where the graph walk says that the loss does not reach the tensors (rules.md: step 1-3)."""
    unseen_steps: int = 20
    """Steps, where no walk was possible (compiled graphs): as for GM101."""
    empty_steps: int = 20
    """Steps of an optimizer that never had any gradient."""


class DetachedGraph:
    """A cut between the early modules and the loss."""

    code = "GM102"
    name = "detached-graph"
    kind: Kind = "invariant"
    needs: frozenset[str] = frozenset()
    lasting = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at the third and fifth table, then every tenth."""
        facts = view.facts
        if facts is None or facts.engine or facts.optimizer_in_backward:
            return
        if view.history.tables == 0:
            yield from self._nothing(view)
        elif view.due(10) or (view.table and view.history.tables in (3, 5)):
            yield from self._cut(view)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when one of the tensors has had a gradient after all."""
        if finding.optimizer != view.frame.optimizer:
            return True
        if finding.variant == "nothing":
            return view.history.tables == 0
        seen, index = view.history.counters.seen, view.history.index
        return not any(name in index and seen[index[name]] for name in finding.params["tensors"])

    def _cut(self, view: View) -> Iterator[Draft]:
        found = missing(view, self.thresholds.walked_steps)
        places = [place for place in found.prefix if self._certain(view, int(place))]
        if not places:
            return
        chosen = view.layout.sorted(np.array(places))
        modules = _modules(view, chosen)
        live = view.layout.sorted(np.flatnonzero(view.history.counters.seen > 0))
        after = _modules(view, live)[0]
        steps = int(view.history.counters.none[chosen].max())
        yield Draft(
            severity="error",
            confidence=0.95 if not found.conditional else 0.6,
            step=0,
            where=(modules[-1], after),
            evidence=(Evidence("tensors that the loss does not reach", len(places), 0, "tensors"),),
            params={
                "before": modules[-1],
                "after": after,
                "n": len(places),
                "steps": steps,
                "tensors": view.layout.pick(chosen),
            },
        )

    def _certain(self, view: View, place: int) -> bool:
        fact = view.layout.facts[place]
        if fact is not None and fact.reached is False and fact.called:
            return True
        return bool(view.history.counters.none[place] >= self.thresholds.unseen_steps)

    def _nothing(self, view: View) -> Iterator[Draft]:
        history = view.history
        stale = view.facts is not None and any(e.get("optimizer") == history.optimizer for e in view.facts.stale)
        if stale or history.hidden_steps or history.empty_steps < self.thresholds.empty_steps:
            return
        yield Draft(
            severity="error",
            confidence=0.8,
            step=0,
            where=tuple(_modules(view, view.layout.sorted(np.arange(len(history.names))))),
            evidence=(Evidence("steps without any gradient", history.empty_steps, 0, "steps"),),
            params={"steps": history.empty_steps, "before": "", "after": "", "n": len(history.names), "tensors": ()},
            variant="nothing",
        )


def _modules(view: View, places: np.ndarray) -> list[str]:
    """Return the modules that hold these tensors, each once, in order."""
    found: dict[str, None] = {}
    for place in places:
        fact = view.layout.facts[place]
        name = view.layout.names[place]
        found[(fact.module if fact is not None else name.rpartition(".")[0]) or name] = None
    return list(found)
