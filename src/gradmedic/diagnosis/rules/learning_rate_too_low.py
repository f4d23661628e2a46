"""GM402 learning-rate-too-low: steps are so small that gradients stay what they were, and the loss does not fall."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.history import leading_rate
from gradmedic.diagnosis.loss import STALL
from gradmedic.diagnosis.ratios import matrices, median_of, update_ratios
from gradmedic.diagnosis.schedule_phase import at_usual_rate, clipped_share
from gradmedic.diagnosis.view import View


@dataclass(frozen=True)
class Thresholds:
    """When a step is too small."""

    ratio: float = 1e-5
    """Median over matrices of |update| / |weight| (rules.md; TheDeepChecker 1e-4, SageMaker Debugger 1e-8, Karpathy:
    healthy about 1e-3)."""
    cosine: float = 0.9
    """Median cosine of successive gradients above which it is the surer: the next one says the same (rules.md)."""
    ratio_certain: float = 1e-6
    """Below this, weights have moved by less than a ten-thousandth in 100 steps: it can be said sooner."""
    cosine_certain: float = 0.15
    """It is enough that batches agree on a direction; those of a converged model do not. How much they agree at
    weights that all but stand still measures their noise: batches of 64 digits by 0.6, of 16 by 0.3 (measured)."""
    fall: float = 0.01
    """Fall of the loss in 100 steps below which it does not fall (rules.md)."""
    window: int = 50
    """Tables, all of which must be known."""
    least_steps: int = 100
    """Steps before anything is said."""
    least_certain: int = 50
    """The same, below `ratio_certain`: in that many steps no weight has moved by as much as its rounding."""
    clipped: float = 0.5
    """Share of clipped steps above which the clip, not the rate, makes the steps small."""
    healthy: float = 1e-3
    """What the remedy aims at."""
    raising: tuple[float, float] = (10.0, 1000.0)
    """Bounds on how many times higher the rate should be (rules.md: 10)."""


class LearningRateTooLow:
    """Nothing is wrong but the size of the steps."""

    code = "GM402"
    name = "learning-rate-too-low"
    kind: Kind = "symptom"
    needs = frozenset({"update_norm", "weight_norm", "cosine_prev"})
    period = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look every ten tables at a run whose loss does not fall."""
        limits = self.thresholds
        if not view.due(self.period) or view.history.steps < limits.least_certain:
            return
        if view.harm.reason != "not_falling" or view.history.tables < limits.window:
            return
        if view.loss.start - view.loss.recent > STALL * abs(view.loss.start):
            return  # solved in its first steps (L-BFGS): the later ones are small because nothing is left to do
        if not at_usual_rate(view, limits.window) or clipped_share(view, limits.window) > limits.clipped:
            return
        if not median_of(update_ratios(view, 1)) < 10 * limits.ratio:
            return  # cheap, and far from it
        ratio = median_of(update_ratios(view, limits.window))
        if not ratio < (limits.ratio if view.history.steps >= limits.least_steps else limits.ratio_certain):
            return
        places, _ = matrices(view.layout)
        cosine = median_of(view.tensor_window("cosine_prev", limits.window)[:, places])
        agree = cosine > limits.cosine_certain
        fall = self._fall(view)
        if agree and fall < limits.fall:
            yield self._draft(view, ratio, cosine, fall)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all."""
        if finding.optimizer != view.frame.optimizer:
            return True
        return not (view.due(self.period) and view.loss.falling)

    def _fall(self, view: View) -> float:
        """Return the fall of the loss in 100 steps, as a part of its level: medians of the halves of the window."""
        losses = view.window("loss", 200)
        losses = losses[np.isfinite(losses)]
        half = len(losses) // 2
        if half < 10:
            return 0.0
        early, late = float(np.median(losses[:half])), float(np.median(losses[half:]))
        return (early - late) / (abs(early) or 1.0) * 100 / half

    def _draft(self, view: View, ratio: float, cosine: float, fall: float) -> Draft:
        limits = self.thresholds
        low, high = limits.raising
        times = float(f"{min(high, max(low, limits.healthy / max(ratio, 1e-30))):.1g}")
        lr = leading_rate(view.frame) or 0.0
        return Draft(
            severity="warning",
            confidence=0.8 if cosine > limits.cosine else 0.65,
            step=0,
            evidence=(
                Evidence("update / weight, median over matrices", ratio, limits.ratio),
                Evidence("cosine of successive gradients, median", cosine, limits.cosine_certain),
                Evidence("fall of the loss in 100 steps", fall, limits.fall),
                Evidence("learning rate", lr),
            ),
            params={
                "ratio": ratio,
                "cosine": cosine,
                "times": times,
                "lr": lr,
                "higher": float(f"{lr * times:.1g}"),
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
        )
