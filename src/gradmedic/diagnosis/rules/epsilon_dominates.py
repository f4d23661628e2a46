"""GM206 epsilon-dominates: gradients are so small that Adam divides by its epsilon instead of by their size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.optimizer_facts import is_adam_kin, numbers_of
from gradmedic.diagnosis.ratios import median_of, update_ratios
from gradmedic.diagnosis.ring import Floats
from gradmedic.diagnosis.schedule_phase import at_usual_rate
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """rules.md: median root of the second moment < 10 epsilon."""

    times: float = 10.0
    window: int = 50
    """Tables whose median is judged: the second moment follows it."""
    share: float = 0.5
    """Share of the tensors that must be below."""
    elements: int = 16
    """Smaller tensors have no rms to speak of."""
    chosen: float = 1e-6
    """An epsilon above this, a hundred times the default, was chosen; one below it dominates because gradients are
    small, which is a fault only where the loss does not fall."""
    opening: int = 100
    """Tables within which a chosen one is judged: later on, gradients may be small because the run has converged."""
    extreme: float = 10.0
    """Gradients this many times below a chosen epsilon from the start: what is left is SGD at `lr / eps`."""
    ratio: float = 1e-3
    """Update over weight that is usual (Karpathy). Above it the learning rate was raised to suit the epsilon."""


class EpsilonDominates:
    """Gradient rms, as the optimizer uses it, beside its epsilon."""

    code = "GM206"
    name = "epsilon-dominates"
    kind: Kind = "symptom"
    needs = frozenset({"norm", "update_norm", "weight_norm"})
    period = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look every ten tables at a run whose loss does not fall, and at one whose epsilon is large from the start."""
        limits = self.thresholds
        tables = view.history.tables
        if not view.due(self.period) or tables < limits.window:
            return
        harmed = view.harm.reason == "not_falling"
        if not harmed and tables > limits.opening:
            return
        if not is_adam_kin(view):
            return
        of_all = numbers_of(view, "eps")
        places = np.flatnonzero((view.layout.numel >= limits.elements) & (of_all > 0))
        if not len(places):
            return
        eps = of_all[places]
        scales = view.window("clip_scale", limits.window)
        scale = float(np.nanmedian(scales)) if np.isfinite(scales).any() else 1.0
        unit = scale / np.sqrt(view.layout.numel[places])
        if not (view.tensor_window("norm", 1)[-1, places] * unit < limits.times * eps).any():
            return
        rms = np.median(view.tensor_window("norm", limits.window)[:, places], axis=0) * unit
        # A gradient of exactly zero is dead, not small.
        live = np.isfinite(rms) & (rms > 0)
        small = live & (rms < limits.times * eps)
        if not live.any():
            return
        if (eps > limits.chosen).any() and tables <= limits.opening:
            yield from self._chosen(view, places, np.where(live, rms, np.inf), eps)
        if harmed and small.sum() > limits.share * live.sum():
            yield self._draft(view, places[small], float(np.median(rms[small])), float(np.median(eps[small])))

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all."""
        if finding.optimizer != view.frame.optimizer or finding.variant:
            return True
        return not (view.due(self.period) and view.loss.falling)

    def _chosen(self, view: View, places: np.ndarray, rms: Floats, eps: Floats) -> Iterator[Draft]:
        """Yield a draft where a large epsilon has made something else of the optimizer, whatever the loss does."""
        limits = self.thresholds
        known = np.isfinite(rms).sum()
        small = (rms < eps) & (eps > limits.chosen)
        if small.sum() <= limits.share * known or not at_usual_rate(view, limits.window):
            return
        extreme = (small & (rms < eps / limits.extreme)).sum() > limits.share * known
        slow = median_of(update_ratios(view, limits.window)) < limits.ratio
        severity: Severity = "warning" if extreme and slow else "info"
        variant = "chosen" if extreme and slow else "note"
        found = float(np.median(rms[small])), float(np.median(eps[small]))
        yield self._draft(view, places[small], *found, severity, variant)

    def _draft(
        self,
        view: View,
        places: np.ndarray,
        rms: float,
        eps: float,
        severity: Severity = "warning",
        variant: str = "",
    ) -> Draft:
        times = 1.0 if variant else self.thresholds.times
        return Draft(
            severity=severity,
            confidence=0.75 if rms < eps else 0.6,
            variant=variant,
            step=int(view.history.table_steps.window(self.thresholds.window)[0, 0]),
            where=view.layout.pick(places),
            evidence=(
                Evidence("gradient rms", rms, times * eps),
                Evidence("epsilon of the optimizer", eps),
                Evidence("loss, median of 20 steps", view.loss.recent, view.loss.first),
            ),
            params={
                "n": len(places),
                "rms": rms,
                "eps": eps,
                "kept": 100 * rms / (rms + eps),
                "suggested": float(f"{min(eps, rms) / 100:.0e}"),
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
        )
