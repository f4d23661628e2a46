"""Single steps whose gradient norm stands far above its recent past and comes back: spikes, and what follows them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from gradmedic.diagnosis.history import SCALAR_STEPS
from gradmedic.diagnosis.ring import Floats
from gradmedic.diagnosis.view import View

#: rules.md: floor on the MAD of a log, so that flat series do not explode z.
MAD_FLOOR = 0.05


@dataclass(frozen=True)
class Thresholds:
    """What a spike is."""

    z: float = 7.0
    """Robust z of the log norm (OLMo 2's spike score: seven standard deviations from the rolling mean of 1000)."""
    growth: float = 3.0
    """And this many times the median: in a flat series z reaches 7 at a growth of 1.7."""
    baseline: int = 200
    """Steps before it that it is compared with."""
    least: int = 50
    """Fewer of them say nothing: in small windows everything is a spike."""
    after: int = 8
    """Steps that are awaited before it is judged. AdamW's loss spikes come within 8 steps of the gradient's (Wortsman
    2023); and a norm that stays up for so long has changed its level, which is no spike."""
    loss_z: float = 5.0
    """Robust z of the loss after it."""
    loss_rise: float = 0.1
    """And this part of its level before."""


@dataclass(frozen=True, slots=True)
class Burst:
    """One spike of the gradient norm.

    Attributes:
        step: the step.
        norm, base: its pre-clip norm and the median before it.
        z: robust z of the log norm.
        loss_before, loss_after: median loss before it, and the highest median of three successive losses in the steps
            after it; NaN when no loss is known.
        hurt: whether the loss rose with the update, and not merely because the step's batch was hard.
    """

    step: int
    norm: float
    base: float
    z: float
    loss_before: float = math.nan
    loss_after: float = math.nan
    hurt: bool = False


@dataclass
class BurstFinder:
    """Finds the spikes of one optimizer, each once, some steps after it happened."""

    thresholds: Thresholds = field(default_factory=Thresholds)
    judged: int = 0
    last: int = -(10**9)

    def due(self, view: View) -> bool:
        """Whether enough has happened since the last look: every twenty steps, and at the end."""
        return view.final or view.history.steps - self.judged >= 20 + self.thresholds.after

    def look(self, view: View) -> list[Burst]:
        """Return the spikes among the steps that were not judged yet and have enough steps after them."""
        limits = self.thresholds
        steps = view.history.steps
        fresh = min(steps - limits.after - self.judged, SCALAR_STEPS - limits.after)
        if fresh <= 0:
            return []
        self.judged = steps - limits.after
        n = min(SCALAR_STEPS, steps, limits.baseline + fresh + limits.after)
        norms = view.window("grad_norm", n)
        lately = norms[-fresh - limits.after :]
        if lately.max() < math.sqrt(limits.growth) * lately.min():
            return []  # nothing has gone up by `growth` and come half the way back; False for NaN
        norms = np.where((norms > 0) & np.isfinite(norms) & (view.window("skipped", n) == 0), norms, np.nan)
        logs = np.log(norms)
        first, end = n - limits.after - fresh, n - limits.after
        before = logs[max(0, first - limits.baseline) : first]
        base, spread, count = centre(before)
        if count < limits.least:
            return []
        height = max(limits.z * spread, math.log(limits.growth))
        found: list[Burst] = []
        for at in np.flatnonzero(logs[first:end] - base >= height) + first:
            step = int(view.window("step", n)[at])
            is_new, self.last = step - self.last > limits.after, step
            # At least half of what it rose by must be gone again, in logs.
            later = logs[at + 1 : at + 1 + limits.after]
            back = bool((later - base < 0.5 * (logs[at] - base)).any())
            if is_new and back:
                told = loss_rise(view.window("loss", n), int(at), limits)
                found.append(Burst(step, float(norms[at]), math.exp(base), (float(logs[at]) - base) / spread, *told))
        return found


def centre(values: Floats) -> tuple[float, float, int]:
    """Return median, robust standard deviation (floored) and count of the finite values of a log series."""
    known = values[np.isfinite(values)]
    if not len(known):
        return math.nan, math.nan, 0
    middle = float(np.median(known))
    return middle, 1.4826 * max(MAD_FLOOR, float(np.median(np.abs(known - middle)))), len(known)


def loss_rise(losses: Floats, at: int, limits: Thresholds) -> tuple[float, float, bool]:
    """Return the loss before a step, the loss after it, and whether the step's update made it rise.

    The loss of the step itself was measured before its update: a hard batch shows there. Three successive losses above
    both it and all that was usual before are the update's.

    Args:
        losses: a window of losses, oldest first; NaN where unknown.
        at: place of the step in it.
        limits: thresholds.
    """
    before = _known_before(losses, at, limits)
    after = losses[at + 1 : at + 1 + limits.after]
    if len(before) < limits.least // 2 or len(after) < 3 or not np.isfinite(after).all():
        return math.nan, math.nan, False
    level, rise = _usual(before, limits)
    high = _highest(after)
    own = losses[at] if math.isfinite(losses[at]) else level
    # Losses near zero have a heavy tail: three of them above five deviations happen in good health.
    usual = max(own, _highest(before[-limits.least // 2 :]))
    return level, high, bool(high > level + rise and high > usual + limits.loss_rise * abs(usual))


def stood_out(losses: Floats, at: int, limits: Thresholds) -> bool:
    """Whether the loss of a step, measured before its update, stands out from those before: its data were other ones.

    Args:
        losses: a window of losses, oldest first; NaN where unknown.
        at: place of the step in it.
        limits: thresholds.
    """
    before = _known_before(losses, at, limits)
    if len(before) < limits.least // 2:
        return False
    level, rise = _usual(before, limits)
    return bool(losses[at] > max(level + rise, float(before.max()) + limits.loss_rise * abs(level)))


def _known_before(losses: Floats, at: int, limits: Thresholds) -> Floats:
    before = losses[max(0, at - limits.least) : at]
    return before[np.isfinite(before)]


def _usual(before: Floats, limits: Thresholds) -> tuple[float, float]:
    """Return the level of losses, and the rise above it that is more than noise."""
    level = float(np.median(before))
    spread = 1.4826 * float(np.median(np.abs(before - level)))
    return level, max(limits.loss_z * spread, limits.loss_rise * abs(level))


def _highest(losses: Floats) -> float:
    """Return the highest median of three successive losses; of at least three."""
    return float(np.median(np.stack([losses[:-2], losses[1:-1], losses[2:]]), axis=0).max())
