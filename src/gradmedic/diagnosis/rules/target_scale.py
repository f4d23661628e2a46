"""GM507 target-scale: targets that are far larger than what the network puts out, and a run that suffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import still_harmed
from gradmedic.diagnosis.module_rows import RowMemory, no_better_than_constant
from gradmedic.diagnosis.view import View
from gradmedic.facts import LossFact
from gradmedic.types import Severity

_REGRESSION = ("mse", "l1", "smooth_l1", "huber")


@dataclass(frozen=True)
class Thresholds:
    """rules.md: mean or spread of the targets above 10 times what is predicted."""

    ratio: float = 10.0
    rms: float = 10.0
    """Standardised targets are never a fault, however small the first predictions are (a head that begins at zero)."""
    samples: int = 3
    """Sampled steps whose median is held against the best constant prediction."""
    share: float = 0.95
    after: int = 100
    """Steps that a run has to get past the mean of its targets."""


class TargetScale:
    """Targets and predictions of the first step."""

    code = "GM507"
    name = "target-scale"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    period = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["loss"])

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look every 10 tables, at sampled and first steps, and at the end."""
        sampled = self._rows.take(view)
        if view.facts is None or not (sampled or view.due(self.period) or view.history.steps <= 3):
            return
        for loss in view.facts.losses:
            if loss.step == 0 and loss.kind in _REGRESSION and not loss.broadcast:
                yield from self._judge(view, loss)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all."""
        if finding.params.get("harm") == "@harm_constant" and self._rows.learned(view, finding):
            return False
        return still_harmed(finding, view)

    def _judge(self, view: View, loss: LossFact) -> Iterator[Draft]:
        limits, numbers = self.thresholds, loss.numbers
        target, prediction = numbers.get("target_rms", 0.0), numbers.get("prediction_rms", 0.0)
        if target <= limits.rms or target <= limits.ratio * max(prediction, numbers.get("prediction_std", 0.0)):
            return
        stuck = self._stuck(view, loss)
        severity: Severity = "warning" if view.harm or stuck is not None else "info"
        yield Draft(
            severity=severity,
            confidence=0.75 if severity == "warning" else 0.4,
            step=0,
            where=(loss.module,) if loss.module else (),
            evidence=(
                Evidence(
                    "rms of the targets over that of the predictions", target / max(prediction, 1e-12), limits.ratio
                ),
                Evidence("rms of the targets", target, limits.rms),
                Evidence("loss over that of the best constant", stuck, limits.share),
            ),
            params={
                "target": target,
                "prediction": prediction,
                "mean": numbers.get("target_mean"),
                "std": numbers.get("target_std"),
                "harm": "@harm_constant" if stuck is not None and not view.harm else view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
            key=loss.module,
        )

    def _stuck(self, view: View, loss: LossFact) -> float | None:
        limits = self.thresholds
        for series in self._rows.series(view, "loss"):
            if series[-1].module == loss.module and series[-1].step >= limits.after:
                return no_better_than_constant(series, limits.samples, limits.share)
        return None
