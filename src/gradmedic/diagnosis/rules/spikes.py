"""GM404 spikes: single gradients far above all others get through to the weights, and the loss pays for it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gradmedic.diagnosis.bursts import Burst, BurstFinder
from gradmedic.diagnosis.bursts import Thresholds as BurstThresholds
from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.history import SCALAR_STEPS
from gradmedic.diagnosis.view import View


@dataclass(frozen=True)
class Thresholds:
    """When spikes are a fault."""

    burst: BurstThresholds = field(default_factory=BurstThresholds)
    share: float = 1e-3
    """Share of steps that are spikes (OLMo 2's spike score: 0.1 %)."""
    window: int = 1000
    """Steps over which the share is taken (OLMo 2)."""
    least: int = 2
    """One spike may be a bad batch."""
    lone: float = 1e3
    """One this many times the usual norm is named all the same, as a note. In none of 445 healthy trainings of up to
    300 steps was a norm 180 times the median one (measured)."""
    lone_steps: int = 10
    """Steps that must be known to say what is usual."""
    update: float = 5.0
    """A spike whose update is no larger than this many times the median one was tamed on its way to the weights: by a
    clip, or by Adam's division (rules.md: each spike's update ratio > 5 x median)."""


@dataclass(frozen=True, slots=True)
class _Seen:
    burst: Burst
    update: float


@dataclass
class _State:
    finder: BurstFinder
    seen: deque[_Seen]


class Spikes:
    """Spikes of the pre-clip gradient norm, with what they did to the weights and the loss."""

    code = "GM404"
    name = "spikes"
    kind: Kind = "symptom"
    needs = frozenset({"update_norm"})

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._states: dict[str, _State] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look every twenty steps, and at the end."""
        limits = self.thresholds
        state = self._states.get(view.frame.optimizer)
        if state is None:
            state = self._states[view.frame.optimizer] = _State(BurstFinder(limits.burst), deque(maxlen=64))
        if not state.finder.due(view):
            return
        for burst in state.finder.look(view):
            state.seen.append(_Seen(burst, _update_over_median(view, burst.step)))
        while state.seen and state.seen[0].burst.step <= view.frame.step - limits.window:
            state.seen.popleft()
        share = len(state.seen) / min(limits.window, view.history.steps)
        if len(state.seen) < limits.least or share <= limits.share:
            yield from self._lone(view)
            return
        through = [entry for entry in state.seen if entry.update > limits.update]
        hurt = [entry for entry in state.seen if entry.burst.hurt]
        if hurt or (through and view.harm):
            yield self._draft(view, list(state.seen), share, len(hurt), harmed=True)
        elif len(through) >= limits.least:
            yield self._draft(view, through, share, 0, harmed=False)

    def _lone(self, view: View) -> Iterator[Draft]:
        """Name one norm that is orders of magnitude above all others and came back, at whatever step it was."""
        limits = self.thresholds
        norms = view.window("grad_norm", SCALAR_STEPS)
        kept = (norms > 0) & np.isfinite(norms) & (view.window("skipped", SCALAR_STEPS) == 0)
        if kept.sum() <= limits.lone_steps:
            return
        norms = np.where(kept, norms, np.nan)
        at = int(np.nanargmax(norms))
        usual, worst = float(np.nanmedian(norms)), float(norms[at])
        after = norms[at + 1 : at + 1 + limits.burst.after]
        # Half of the way back, in logs; the product of two norms may overflow.
        if worst / usual <= limits.lone or not (after < math.sqrt(worst) * math.sqrt(usual)).any():
            return
        step = int(view.window("step", SCALAR_STEPS)[at])
        yield Draft(
            severity="info",
            confidence=0.5,
            step=step,
            evidence=(Evidence("pre-clip gradient norm, of one step", worst, usual * limits.lone),),
            params={
                "n": 1,
                "hurt": 0,
                "steps": (str(step),),
                "times": worst / usual,
                "worst": step,
                "value": worst,
                "usual": usual,
                "suggested": float(f"{2 * usual:.1g}"),
            },
            variant="lone",
        )

    def _draft(self, view: View, seen: list[_Seen], share: float, hurt: int, *, harmed: bool) -> Draft:
        limits = self.thresholds
        worst = max(seen, key=lambda entry: entry.burst.norm / entry.burst.base)
        updates = [entry.update for entry in seen if np.isfinite(entry.update)]
        base = worst.burst.base
        return Draft(
            severity="warning" if harmed else "info",
            confidence=0.75 if hurt else 0.5,
            step=seen[0].burst.step,
            evidence=(
                Evidence("spikes of the gradient norm", len(seen), limits.least, "steps"),
                Evidence("share of steps that are spikes", share, limits.share),
                Evidence("pre-clip gradient norm, of one step", worst.burst.norm, base * limits.burst.growth),
                Evidence("robust z of the log norm", worst.burst.z, limits.burst.z),
                *(
                    Evidence("update / median update, at a spike", u, limits.update)
                    for u in [max(updates, default=0.0)]
                ),
                Evidence("spikes after which the loss rises", hurt, 0),
            ),
            params={
                "n": len(seen),
                "hurt": hurt,
                "steps": tuple(str(entry.burst.step) for entry in seen),
                "times": worst.burst.norm / base,
                "worst": worst.burst.step,
                "suggested": float(f"{2 * base:.1g}"),
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
            variant="" if hurt else ("harm" if harmed else "note"),
        )


def _update_over_median(view: View, step: int) -> float:
    """Return the size of a step's update over the median one, NaN where it was not measured."""
    steps = view.history.table_steps.window(len(view.tensor_window("update_norm", 64)))[:, 0]
    found = np.flatnonzero(steps == step)
    if not len(found):
        return float("nan")
    updates = np.sqrt(np.nansum(view.tensor_window("update_norm", 64) ** 2, axis=1))
    middle = float(np.median(updates))
    return float(updates[found[-1]]) / middle if middle > 0 else float("nan")
