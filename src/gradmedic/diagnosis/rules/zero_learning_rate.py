"""GM111 zero-learning-rate: the learning rate is zero, or a scheduler has spent it far too early."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """When a small learning rate is a fault."""

    zero_steps: int = 5
    """Steps in a row with a rate of exactly zero; a warm-up that starts at zero has one."""
    collapse: float = 1e-3
    """Below this part of its peak the rate counts as spent (rules.md: lr < 1e-3 peak early)."""
    spent_share: float = 0.8
    """Share of the run with a spent rate: it was spent within the first fifth (rules.md: 20 % of budget). A decay to
    zero, one-cycle or cosine, spends its last few percent there."""
    least_steps: int = 50
    """Steps before a spent rate is judged."""


class ZeroLearningRate:
    """Nothing is learned because nothing is allowed to move."""

    code = "GM111"
    name = "zero-learning-rate"
    kind: Kind = "invariant"
    needs: frozenset[str] = frozenset()
    lasting = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._zero: dict[str, int] = {}
        self._spent: dict[str, int] = {}
        self._last: dict[tuple[str, str], Draft] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Count every frame; at the end say for how long it was so."""
        if view.final:
            yield from (draft for (name, _), draft in self._last.items() if name == view.frame.optimizer)
            return
        if view.frame.lr is None:
            return
        rates = view.frame.lrs or (view.frame.lr,)
        peak = view.history.peak_lr
        name, steps, limits = view.frame.optimizer, view.history.steps, self.thresholds
        self._zero[name] = self._zero.get(name, 0) + 1 if max(rates) == 0 else 0
        if peak > 0 and max(rates) < limits.collapse * peak:
            self._spent[name] = self._spent.get(name, 0) + 1
        zero = self._zero[name]
        if zero >= limits.zero_steps and zero > limits.spent_share * steps:
            yield self._draft(view, "error", steps - zero, zero, "")
        spent = self._spent.get(name, 0)
        if steps >= limits.least_steps and spent > limits.spent_share * steps:
            yield self._draft(view, "warning", steps - spent, spent, "spent")

    def _draft(self, view: View, severity: Severity, first: int, count: int, variant: str) -> Draft:
        draft = self._last[view.frame.optimizer, variant] = Draft(
            severity=severity,
            confidence=0.95 if not variant else 0.75,
            step=first,
            evidence=(
                Evidence("learning rate", view.frame.lr, self.thresholds.collapse * view.history.peak_lr, ""),
                Evidence("steps", count, self.thresholds.zero_steps, "steps"),
            ),
            params={"lr": view.frame.lr, "peak": view.history.peak_lr, "steps": count},
            variant=variant,
        )
        return draft
