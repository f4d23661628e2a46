"""GM205 lost-updates: bfloat16 or float16 weights round most of each update away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.history import leading_rate
from gradmedic.diagnosis.view import View
from gradmedic.facts import settings_of_groups

Floats = npt.NDArray[np.float64]

#: Settings with which an optimizer keeps what rounding takes, so that a weight that stands still has lost nothing.
_COMPENSATED = ("kahan", "stochastic", "master", "compensat")


@dataclass(frozen=True)
class Thresholds:
    """When rounding is a fault."""

    share: float = 0.5
    """Share of the low-precision elements with a gradient that keep their bits in a step (rules.md: 50 %)."""
    cleared: float = 0.4
    """Below this share the finding is taken back: a warm-up has grown out of it."""
    steps: int = 10
    """Tables in a row. Fewer are met by the very first steps of a warm-up."""
    rate: float = 0.3
    """Part of the peak learning rate below which nothing is said: the tail of a schedule rounds away in good health."""


class LostUpdates:
    """Updates smaller than half the distance between neighbouring numbers of the weight's type."""

    code = "GM205"
    name = "lost-updates"
    kind: Kind = "invariant"
    needs = frozenset({"norm", "unchanged_frac", "zero_count"})
    period = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look every 10 tables, and at the end."""
        if not self._judged(view):
            return
        lost = self._lost(view)
        shares = self._shares(view, lost)
        if not (shares > self.thresholds.share).all():
            return
        per_tensor = np.nan_to_num(lost).mean(axis=0)
        places = np.flatnonzero(per_tensor > self.thresholds.share)
        if not len(places):
            return
        share = float(np.median(shares))
        yield Draft(
            severity="warning",
            confidence=0.8,
            step=int(view.history.table_steps.window(len(shares))[0, 0]),
            where=view.layout.pick(places),
            evidence=(
                Evidence("share of low-precision elements that a step leaves unchanged", share, self.thresholds.share),
                Evidence("learning rate", leading_rate(view.frame)),
            ),
            params={"share": 100 * share, "n": len(places), "dtype": _dtypes(view, places)},
        )

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when updates get through after all."""
        if finding.optimizer != view.frame.optimizer or not self._judged(view):
            return True
        return bool(np.median(self._shares(view, self._lost(view))) >= self.thresholds.cleared)

    def _judged(self, view: View) -> bool:
        if not view.due(self.period) or view.history.tables < self.thresholds.steps:
            return False
        lr = leading_rate(view.frame)
        if lr is not None and (lr == 0 or lr < self.thresholds.rate * view.history.peak_lr):
            return False
        return bool(view.layout.low_precision.any()) and not _is_compensated(view)

    def _lost(self, view: View) -> Floats:
        """Return which share of each tensor's elements with a gradient stood still [n, P]; NaN where none is known.

        An element whose gradient is zero may rightly stand still: all of those are taken for unchanged, so that the
        share is a lower bound.
        """
        steps = self.thresholds.steps
        unchanged = view.tensor_window("unchanged_frac", steps)
        idle = np.nan_to_num(view.tensor_window("zero_count", steps)) / np.maximum(view.layout.numel, 1)
        live = (view.tensor_window("norm", steps) > 0) & view.layout.low_precision & (idle < 1)
        lost: Floats = np.where(live, np.clip((unchanged - idle) / np.maximum(1 - idle, 1e-12), 0.0, 1.0), np.nan)
        return lost

    def _shares(self, view: View, lost: Floats) -> Floats:
        """Return the share over all low-precision elements, by step [n]; 0 where none is known."""
        numel = view.layout.numel.astype(np.float64)
        total = (np.isfinite(lost) * numel).sum(axis=1)
        shares: Floats = (np.nan_to_num(lost) * numel).sum(axis=1) / np.maximum(total, 1.0)
        return shares


def _is_compensated(view: View) -> bool:
    """Whether the optimizer's class or settings say that it rounds stochastically, sums with compensation, or keeps
    master weights.
    """
    known: Any = view.facts.optimizers.get(view.frame.optimizer, {}) if view.facts else {}
    words = [
        str(known.get("class", "")),
        *(key for group in settings_of_groups(known) for key, value in group.items() if value),
    ]
    return any(mark in word.lower() for word in words for mark in _COMPENSATED)


def _dtypes(view: View, places: npt.NDArray[np.int64]) -> str:
    facts = (view.layout.facts[place] for place in places)
    return " / ".join(sorted({fact.dtype for fact in facts if fact is not None}))
