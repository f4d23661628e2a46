"""GM111 zero-learning-rate: the learning rate is zero, or a scheduler has spent it far too early."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.optimizer_facts import group_places, groups_of
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
    group_steps: int = 20
    """Steps from the first on in which a group's rate is zero and others learn; a warm-up is of all groups."""
    group_warning: int = 100
    """Steps before that is more than a note: where most of the model waits and the loss has hardly fallen."""
    unlearned: float = 0.5
    """Part of its first loss that such a run still has: a backbone kept still on purpose knows something."""
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
        self._waiting: dict[str, list[int]] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Count every frame; at the end say for how long it was so."""
        if view.final:
            yield from (draft for (name, _), draft in self._last.items() if name == view.frame.optimizer)
            return
        if view.frame.lr is None:
            return
        yield from self._groups(view)
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

    def holds(self, finding: Finding, view: View) -> bool:
        """Take a group back whose rate is zero no longer: layers may be let go one after the other."""
        group = finding.params.get("group")
        rates = view.frame.lrs
        if group is None or finding.optimizer != view.frame.optimizer or group >= len(rates):
            return True
        return bool(rates[group] == 0)

    def _groups(self, view: View) -> Iterator[Draft]:
        """Yield a draft for each group whose rate has been zero from the first step on, while others learn."""
        rates, limits = view.frame.lrs, self.thresholds
        if not rates or not max(rates) > 0:
            return
        name = view.frame.optimizer
        waiting = self._waiting.setdefault(name, [])
        waiting += [0] * (len(rates) - len(waiting))  # groups are added while a run goes on
        for place, rate in enumerate(rates):
            if rate != 0:
                waiting[place] = -view.history.steps - limits.group_steps  # it has had its turn, whatever comes
            waiting[place] += 1
        ripe = len(rates) > 1 and max(waiting) >= limits.group_steps and view.history.steps % 10 == 0
        if not ripe or len(groups_of(view)) != len(rates):
            return
        flows = view.history.counters.nonzero > 0
        for place in (place for place, count in enumerate(waiting) if count >= limits.group_steps):
            held = flows & (group_places(view) == place)
            if held.any():
                yield self._group_draft(view, place, waiting[place], held)

    def _group_draft(self, view: View, group: int, steps: int, held: npt.NDArray[np.bool_]) -> Draft:
        limits, loss, numel = self.thresholds, view.loss, view.layout.numel
        share = float(numel[held].sum()) / max(1.0, float(numel.sum()))
        unlearned = bool(view.harm) or (loss.first > 0 and loss.recent > limits.unlearned * loss.first)
        grave = view.history.steps >= limits.group_warning and share > 0.5 and unlearned
        return Draft(
            severity="warning" if grave else "info",
            confidence=0.7 if grave else 0.5,
            step=view.frame.step - steps + 1,
            where=view.layout.pick(np.flatnonzero(held)),
            evidence=(
                Evidence("learning rate", 0.0, 0.0, ""),
                Evidence("steps", steps, limits.group_steps, "steps"),
            ),
            params={"group": group, "n": int(held.sum()), "steps": steps, "lr": max(view.frame.lrs)},
            variant="group",
            key=f"group {group}",
        )

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
