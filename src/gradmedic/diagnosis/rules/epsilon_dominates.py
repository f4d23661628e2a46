"""GM206 epsilon-dominates: gradients are so small that Adam divides by its epsilon instead of by their size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.optimizer_facts import is_adam_kin, number_of
from gradmedic.diagnosis.view import View


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


class EpsilonDominates:
    """Gradient rms, as the optimizer uses it, beside its epsilon."""

    code = "GM206"
    name = "epsilon-dominates"
    kind: Kind = "symptom"
    needs = frozenset({"norm"})
    period = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look every ten tables at a run whose loss does not fall."""
        limits = self.thresholds
        if not view.due(self.period) or view.history.tables < limits.window or view.harm.reason != "not_falling":
            return
        eps = number_of(view, "eps") if is_adam_kin(view) else None
        places = np.flatnonzero(view.layout.numel >= limits.elements)
        if not eps or not len(places):
            return
        scales = view.window("clip_scale", limits.window)
        scale = float(np.nanmedian(scales)) if np.isfinite(scales).any() else 1.0
        unit = scale / np.sqrt(view.layout.numel[places])
        if not (view.tensor_window("norm", 1)[-1, places] * unit < limits.times * eps).any():
            return
        rms = np.median(view.tensor_window("norm", limits.window)[:, places], axis=0) * unit
        # A gradient of exactly zero is dead, not small.
        live = np.isfinite(rms) & (rms > 0)
        small = live & (rms < limits.times * eps)
        if live.any() and small.sum() > limits.share * live.sum():
            yield self._draft(view, places[small], float(np.median(rms[small])), eps)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all."""
        if finding.optimizer != view.frame.optimizer:
            return True
        return not (view.due(self.period) and view.loss.falling)

    def _draft(self, view: View, places: np.ndarray, rms: float, eps: float) -> Draft:
        return Draft(
            severity="warning",
            confidence=0.75 if rms < eps else 0.6,
            step=int(view.history.table_steps.window(self.thresholds.window)[0, 0]),
            where=view.layout.pick(places),
            evidence=(
                Evidence("gradient rms", rms, self.thresholds.times * eps),
                Evidence("epsilon of the optimizer", eps),
                Evidence("loss, recent", view.loss.recent, view.loss.first),
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
