"""GM510 labels-unrelated: all that can be seen of the training is in order, yet nothing of the labels is learned."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.history import SCALAR_STEPS
from gradmedic.diagnosis.module_rows import RowMemory, SampledRow, Series, median_row, no_better_than_constant, recent
from gradmedic.diagnosis.probed import verdicts
from gradmedic.diagnosis.ratios import matrices, median_of, update_ratios
from gradmedic.diagnosis.soft_targets import gain_in_reach, has_gained, still_gains
from gradmedic.diagnosis.view import View


@dataclass(frozen=True)
class Thresholds:
    """When nothing but the labels is left to suspect."""

    loss_share: float = 0.98
    """Part of the loss of the best constant prediction (rules.md: within 2 %)."""
    loss_above: float = 1.15
    """Above this the loss is worse than that of a constant: steps are too large, or the sign is wrong."""
    samples: int = 3
    """Sampled steps in a row, the first three steps left out."""
    after: int = 120
    """Steps before which it is a slow start."""
    labels: int = 1000
    """Labels seen before that: fewer say little about what can be learned of them."""
    entropy: float = 0.1
    """Labels with less entropy (nats), or targets with less variance, hardly differ."""
    ratio: float = 1e-4
    """Median |update| / |weight| below which the learning rate is too low to tell: digits whose labels are right stay
    within 2 % of a constant's loss for hundreds of steps (1e-5 is too low for any training, GM402)."""
    ratio_usual: float = 1e-3
    """And below which the loss must have come to rest: it may be that of a constant because it falls so slowly."""
    ratio_high: float = 2e-2
    """And above which it is too high to tell (GM401)."""
    moved: float = 0.15
    """How far weights must have gone, that ratio times the steps: digits whose labels are right are at 0.1 when their
    loss is 2 % below that of a constant (measured, ratios 6e-5 to 2e-4)."""
    rest: float = 0.01
    """Fall of the loss over the remembered steps, as a part of the constant's, up to which it is at rest: shuffled
    digits that are learned by heart fall by 0.8 % in 500 such steps, those with their labels by 1.3 to 13 %."""
    certain: float = 4.0
    """Standard errors of that fall above which it is no noise."""
    cosine: float = 0.3
    """Median cosine of successive gradients above which batches agree on a direction, and there is something to learn
    (digits at fixed weights: 0.3 for batches of 16, 0.6 for batches of 64, measured)."""
    top_share: float = 0.95
    """Share of one predicted class above which it is a constant prediction (GM509), where one label is as frequent."""
    label_share: float = 0.8
    """Share of the most frequent label up to which labels count as balanced."""
    spread: float = 1e-3
    """Largest difference between predictions, over their magnitude, below which the input is ignored (GM514)."""
    window: int = 50
    """Tables that updates and cosines are taken over."""


class LabelsUnrelated:
    """What is left when steps, gradients and predictions are as they should be, and the loss is that of a constant."""

    code = "GM510"
    name = "labels-unrelated"
    kind: Kind = "symptom"
    needs = frozenset({"update_norm", "weight_norm", "cosine_prev"})
    sampled = True
    lasting = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["loss"])
        self._fits: bool | None = None

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled steps, and at the end."""
        for event in verdicts(view, "overfit"):
            self._fits = event.get("verdict") == "fits"
        if not self._rows.take(view) or view.several_optimizers or self._fits is False:
            return
        for series in self._rows.series(view, "loss"):
            draft = self._judge(view, series)
            if draft is not None:
                yield draft

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls below that of a constant after all, or one batch cannot be fitted either.

        Soft targets are not learned by heart as soon as labels are: there a small gain is enough, if it is no scatter.
        """
        series = self._rows.spoken_of(view, finding)
        if self._fits is False or (series is not None and has_gained(series)):
            return False
        return not self._rows.learned(view, finding)

    def _judge(self, view: View, series: Series) -> Draft | None:
        limits, last = self.thresholds, series[-1]
        if last.step < limits.after or last.get("weighted") > 0 or not self._labels_differ(series):
            return None
        ratio = no_better_than_constant(series, limits.samples, limits.loss_share)
        if ratio is None or ratio > limits.loss_above or not self._predictions_differ(series):
            return None
        if still_gains(series, limits.samples):
            return None
        moving = median_of(update_ratios(view, limits.window))
        places, _ = matrices(view.layout)
        cosine = median_of(view.tensor_window("cosine_prev", limits.window)[:, places])
        if (
            not limits.ratio <= moving <= limits.ratio_high
            or moving * view.history.steps < limits.moved
            or cosine > limits.cosine
            or (moving < limits.ratio_usual and self._falls(view, last.get("baseline")))
        ):
            return None
        return self._draft(series, ratio, moving, cosine)

    def _quoted(self, series: Series) -> SampledRow:
        """Return the latest sample, or where that one happens to beat the constant the one of the median ratio."""
        limits, last = self.thresholds, series[-1]
        latest = last.get("loss") >= limits.loss_share * last.get("baseline")
        return last if latest else median_row(series, limits.samples)

    def _labels_differ(self, series: Series) -> bool:
        limits, last = self.thresholds, series[-1]
        seen = last.get("labels_seen")
        if not math.isfinite(seen):
            seen = sum(recent(series, "count", len(series)))
        differ = last.get("baseline") > (limits.entropy if math.isfinite(last.get("classes")) else 0.0)
        return differ and seen * max(1.0, _batches(series)) >= limits.labels

    def _predictions_differ(self, series: Series) -> bool:
        limits = self.thresholds
        spread, top, labels = (
            float(np.median(recent(series, key, limits.samples) or [math.nan]))
            for key in ("row_spread", "top_share", "label_share")
        )
        return not spread < limits.spread and not (top > limits.top_share and labels > limits.label_share)

    def _falls(self, view: View, constant: float) -> bool:
        """Whether a straight line through the remembered losses goes down, by more than noise would."""
        losses = view.window("loss", SCALAR_STEPS)
        losses = losses[np.isfinite(losses)]
        if len(losses) < self.thresholds.window:
            return False
        place = np.arange(len(losses)) - (len(losses) - 1) / 2
        squares = float(place @ place)
        slope = float(place @ losses) / squares
        rest = losses - losses.mean() - slope * place
        error = math.sqrt(float(rest @ rest) / (len(losses) - 2) / squares)
        limits = self.thresholds
        return -slope * len(losses) > limits.rest * constant and -slope > limits.certain * error

    def _draft(self, series: Series, ratio: float, moving: float, cosine: float) -> Draft:
        limits, last, quoted = self.thresholds, series[-1], self._quoted(series)
        numbers = math.isnan(last.get("classes")) or gain_in_reach(series) is not None
        draft = Draft(
            severity="warning",
            confidence=0.6,
            step=0,
            where=(last.module,) if last.module else (),
            evidence=(
                Evidence("loss over that of the best constant", ratio, limits.loss_share),
                Evidence("update / weight, median over matrices", moving, limits.ratio),
                Evidence("cosine of successive gradients, median", cosine, limits.cosine),
            ),
            params={
                "steps": last.step + 1,
                "loss": quoted.get("loss"),
                "loss_step": quoted.step,
                "constant": quoted.get("baseline"),
            },
            variant="targets" if numbers else "",
            key=last.module,
        )
        return replace(draft, confidence=0.85, variant="fits", severity="error") if self._fits else draft


def _batches(series: Series) -> float:
    """Return steps for each sampled one: labels are counted on sampled steps only."""
    return (series[-1].step + 1) / len(series)
