"""GM107 missing-zero-grad: the gradients of the step before are still there when the next backward begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.view import View


@dataclass(frozen=True)
class Thresholds:
    """How often before it is said."""

    steps: int = 3
    """Steps in a row (rules.md)."""


class MissingZeroGrad:
    """Gradients add up over steps."""

    code = "GM107"
    name = "missing-zero-grad"
    kind: Kind = "invariant"
    needs: frozenset[str] = frozenset()
    lasting = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._first: dict[str, int] = {}
        self._last: dict[str, Draft] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at every frame that carries stale gradients; at the end say how long the first row was."""
        name, least = view.frame.optimizer, self.thresholds.steps
        if view.final:
            if name in self._last:
                yield self._last[name]
            return
        if not view.frame.stale_grads:
            self._first.pop(name, None)
            return
        first = self._first.setdefault(name, view.frame.step)
        steps = view.frame.step - first + 1
        if steps < least:
            return
        draft = Draft(
            severity="error",
            confidence=0.95,
            step=first,
            evidence=(Evidence("steps in a row that began with old gradients", steps, least, "steps"),),
            params={"steps": steps},
        )
        if first == self._last.setdefault(name, draft).step:
            self._last[name] = draft
        yield draft
