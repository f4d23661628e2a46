"""GM408 noise-dominated: what single batches want differs so much that their mean direction drowns in it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import still_harmed
from gradmedic.diagnosis.view import View


@dataclass(frozen=True)
class Thresholds:
    """rules.md: the gradient noise scale is more than 20 times the batch."""

    ratio: float = 20.0
    window: int = 64
    """Steps over which the agreement of successive gradients is averaged."""
    least: int = 60
    deviations: float = 2.0
    """Standard errors that the agreement may be larger in truth."""
    swinging: float = -0.05
    """Agreement below which gradients turn around, which is a step too large and no noise."""


class NoiseDominated:
    """Agreement of successive gradients, where the loss does not fall.

    Two gradients of independent batches share the mean gradient only: their product is |G|^2 on average, and each has
    the square |G|^2 + trace(Sigma) / B. Their cosine is 1 / (1 + B_simple / B), with the noise scale B_simple =
    trace(Sigma) / |G|^2 (McCandlish et al. 2018, arXiv 1812.06162). Gradients of two successive steps stand in for
    those of two batches, so that no second backward pass is needed; steps that turn the gradient around hide it.
    """

    code = "GM408"
    name = "noise-dominated"
    kind: Kind = "symptom"
    needs = frozenset({"cosine_prev", "norm"})
    period = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look every 10 tables, and at the end."""
        limits = self.thresholds
        if not view.due(self.period) or view.harm.reason != "not_falling":
            return
        agreement, error, steps = agreement_of(
            view.tensor_window("cosine_prev", limits.window), view.tensor_window("norm", limits.window)
        )
        if steps < limits.least or not agreement > limits.swinging:
            return
        upper = agreement + limits.deviations * error
        if not upper < 1 / (1 + limits.ratio):
            return
        # A common direction that may as well be zero is no signal that larger batches would bring out.
        signal = agreement > limits.deviations * error
        yield Draft(
            severity="warning" if signal else "info",
            confidence=0.45 if signal else 0.3,
            step=int(view.history.table_steps.window(steps)[0, 0]),
            evidence=(
                Evidence("noise scale over batch size, at least", 1 / max(upper, 1e-9) - 1, limits.ratio),
                Evidence("mean cosine of successive gradients", agreement, 1 / (1 + limits.ratio)),
            ),
            params={
                "times": float(f"{1 / max(upper, 1e-3) - 1:.2g}"),
                "cosine": agreement,
                "n": steps,
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
        )

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all, a note too: it says that the loss does not."""
        return still_harmed(replace(finding, severity="warning"), view)


def agreement_of(cosines: np.ndarray, norms: np.ndarray) -> tuple[float, float, int]:
    """Return the mean cosine of successive gradients of the whole model, its standard error, and how many there are.

    Args:
        cosines: of each tensor's gradient with that of the step before [S, P]; NaN where unknown.
        norms: of each tensor's gradient [S, P].
    """
    if not cosines.size:
        return math.nan, math.nan, 0
    known = np.isfinite(cosines) & np.isfinite(norms)
    weights = np.where(known, norms**2, 0.0)
    total = weights.sum(axis=1)
    of_step = (weights * np.where(known, cosines, 0.0)).sum(axis=1)[total > 0] / total[total > 0]
    if len(of_step) < 2:
        return math.nan, math.nan, len(of_step)
    return float(of_step.mean()), float(of_step.std(ddof=1) / math.sqrt(len(of_step))), len(of_step)
