"""GM106 no-op-step: gradients are there, the learning rate is not zero, and the weights do not move."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.history import leading_rate
from gradmedic.diagnosis.optimizer_facts import rates_of
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity

#: Optimizers whose update is about `lr` per element whatever the gradient's size.
_ADAPTIVE = ("adam", "rmsprop", "adagrad", "adadelta", "lion", "nadam", "radam", "adafactor", "sign", "lamb")

#: A line search that has converged, or finds no descent, rightly leaves the weights alone.
_MAY_STAND_STILL = ("lbfgs",)


@dataclass(frozen=True)
class Thresholds:
    """When a weight that stands still is a fault."""

    steps: int = 3
    """Steps in a row, when no weight at all moves (rules.md: 2; one more for optimizers that act every other call)."""
    partial_steps: int = 20
    """Steps in a row, when only some do not."""
    relative_step: float = 1e-5
    """An fp32 weight must have moved when the step is this large beside it: 170 times fp32's half-ulp of 6e-8. Below
    it, the tail of a decaying schedule rounds to nothing in good health."""
    low_precision_step: float = 1e-2
    """The same for bf16 and fp16 weights: 2.5 times the largest half-ulp of bf16 (2^-8). Smaller steps may be lost to
    rounding, which is GM205."""


class NoOpStep:
    """Steps that change nothing."""

    code = "GM106"
    name = "no-op-step"
    kind: Kind = "invariant"
    needs = frozenset({"norm", "update_norm", "weight_norm", "unchanged_frac"})
    lasting = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._last: dict[tuple[str, str], Draft] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at every table in which something stood still; at the end say for how long it did."""
        name = view.frame.optimizer
        if view.final:
            yield from (draft for (owner, _), draft in self._last.items() if owner == name)
        for draft in self._look(view):
            self._last[name, draft.variant] = self._lengthened(draft, self._last.get((name, draft.variant)), view)
            yield draft

    def _lengthened(self, draft: Draft, before: Draft | None, view: View) -> Draft:
        """Return what to say at the end: of the first row of such steps, and as long as it went on without a gap."""
        if before is None:
            return draft
        end = before.step + int(before.params["steps"])
        if before.where != draft.where or draft.step > end:
            return before
        steps = view.frame.step - before.step + 1
        evidence = (draft.evidence[0], replace(draft.evidence[1], value=steps), *draft.evidence[2:])
        return replace(before, params={**before.params, "steps": steps}, evidence=evidence)

    def _look(self, view: View) -> Iterator[Draft]:
        if not view.table or view.history.tables < self.thresholds.steps or not leading_rate(view.frame):
            return
        if view.optimizer_class.lower() in _MAY_STAND_STILL:
            return
        if not (view.tensor_window("update_norm", 1) == 0).any():
            return
        still = self._still(view, self.thresholds.steps)
        live = self._live(view, self.thresholds.steps)
        if not (still & live).any():
            return
        due = live & self._should_move(view)
        if due.any() and (still | ~live).all() and still[due].all():
            yield self._draft(view, np.flatnonzero(still & due), "error", self.thresholds.steps, "")
        elif view.history.tables >= self.thresholds.partial_steps:
            steps = self.thresholds.partial_steps
            still = self._still(view, steps) & self._live(view, steps)
            if (still & due).any():
                yield self._draft(view, np.flatnonzero(still & due), "warning", steps, "partial")

    def _live(self, view: View, steps: int) -> npt.NDArray[np.bool_]:
        """Whether a gradient was there in each of the last steps [P]; NaN stands for none."""
        return np.asarray((view.tensor_window("norm", steps) > 0).all(axis=0), dtype=np.bool_)

    def _still(self, view: View, steps: int) -> npt.NDArray[np.bool_]:
        update = view.tensor_window("update_norm", steps)
        unchanged = view.tensor_window("unchanged_frac", steps)
        stood: npt.NDArray[np.bool_] = ((update == 0) & ((unchanged >= 1) | np.isnan(unchanged))).all(axis=0)
        return stood

    def _should_move(self, view: View) -> npt.NDArray[np.bool_]:
        """Whether a step of this size cannot round to nothing [P]."""
        lr = np.nan_to_num(rates_of(view))
        weight = view.tensor_window("weight_norm", 1)[-1]
        size = np.sqrt(np.maximum(view.layout.numel, 1))
        if any(word in view.optimizer_class.lower() for word in _ADAPTIVE):
            step = lr * size
        else:
            scale = view.frame.clip_scale if math.isfinite(view.frame.clip_scale) else 0.0
            step = lr * scale * view.tensor_window("norm", 1)[-1]
        least = np.where(view.layout.low_precision, self.thresholds.low_precision_step, self.thresholds.relative_step)
        due: npt.NDArray[np.bool_] = step > least * weight
        return due

    def _draft(self, view: View, places: npt.NDArray[np.int64], severity: Severity, steps: int, variant: str) -> Draft:
        first = int(view.history.table_steps.window(steps)[0, 0])
        rate = float(rates_of(view)[places].max())
        return Draft(
            severity=severity,
            confidence=0.9 if variant == "" else 0.7,
            step=first,
            where=view.layout.pick(places),
            evidence=(
                Evidence("update norm", 0.0, 0.0, ""),
                Evidence("steps in a row", steps, steps, "steps"),
                Evidence("learning rate", rate, 0.0, ""),
            ),
            params={"n": len(places), "steps": steps, "lr": rate},
            variant=variant,
        )
