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

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at every frame that carries stale gradients."""
        steps = self.thresholds.steps
        if not view.frame.stale_grads or view.history.steps < steps:
            return
        if not (view.window("stale_grads", steps) > 0).all():
            return
        yield Draft(
            severity="error",
            confidence=0.95,
            step=int(view.window("step", steps)[0]),
            evidence=(Evidence("steps in a row that began with old gradients", steps, steps, "steps"),),
            params={"steps": steps},
        )
