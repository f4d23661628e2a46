"""GM509 constant-prediction: nearly every sample gets the same class, and the loss is that of guessing by frequency."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.module_rows import (
    RowMemory,
    SampledRow,
    Series,
    is_whole,
    median_row,
    no_better_than_constant,
    recent,
)
from gradmedic.diagnosis.view import View

_BINARY = ("bce", "bce_with_logits")
_KINDS = ("cross_entropy", *_BINARY)


@dataclass(frozen=True)
class Thresholds:
    """rules.md: more than 95 % of the predictions in one class, at the loss of the prior."""

    top_share: float = 0.95
    loss_share: float = 0.95
    """Part of the entropy of the labels from which on nothing is learned."""
    samples: int = 3
    """Sampled steps in a row (every network begins like this)."""
    after: int = 100
    """Steps before which it is a slow start."""
    mean: int = 50
    """Steps over which the loss is averaged where single batches tell little."""
    entropy: float = 0.02
    """Labels with less entropy (nats) than this hardly differ: 0.3 % of a second class."""
    labels: int = 200
    """Labels seen before their entropy is known."""
    imbalance: float = 0.9
    """Share of the largest class from which on imbalance is the likely cause (rules.md: one in ten)."""
    weight_ratio: float = 3.0
    """Weight of the most frequent class over that of the rarest from which on weights make the imbalance worse."""
    found: float = 0.25
    """Share of the rare labels that is predicted at all, below which they are given up."""
    weighted_samples: int = 5
    """Sampled steps over which both are counted."""


class ConstantPrediction:
    """Predictions and loss of the sampled steps."""

    code = "GM509"
    name = "constant-prediction"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["loss"])

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled steps, and at the end."""
        if self._rows.take(view):
            for series in self._rows.series(view, "loss"):
                # A discriminator that is undecided has found its equilibrium.
                adversary = view.several_optimizers and series[-1].leaf in _BINARY
                if series[-1].leaf not in _KINDS or adversary:
                    continue
                if series[-1].get("weighted") > 0:
                    yield from self._judge_weights(series)
                else:
                    yield from self._judge(view, series)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls below that of a constant after all: some networks start very slowly."""
        if finding.variant == "weights":
            here = (each for each in self._rows.series(view, "loss") if each[-1].module in finding.where)
            return finding.optimizer != view.frame.optimizer or any(self._gives_up(series) for series in here)
        return not self._rows.learned(view, finding)

    def _judge(self, view: View, series: Series) -> Iterator[Draft]:
        limits, last = self.thresholds, series[-1]
        if last.step < limits.after or not self._labels_differ(last) or not _any_mixed(series):
            return
        shares = recent(series, "top_share", limits.samples)
        ratio = no_better_than_constant(series, limits.samples, limits.loss_share)
        quoted = median_row(series, limits.samples)
        loss: dict[str, object] = {"loss": quoted.get("loss"), "loss_step": quoted.step, "when": "@one_step"}
        if ratio is None and (mean := self._in_the_mean(view, last)) is not None:
            quoted, ratio, loss = last, mean / last.get("baseline"), self._quoted(view, mean)
        if ratio is None or len(shares) < limits.samples or min(shares) <= limits.top_share:
            return
        largest = median(recent(series, "label_share", limits.samples) or [0.0])
        yield Draft(
            severity="warning",
            confidence=0.8,
            step=next((row.step for row in series if row.get("top_share") > limits.top_share), last.step),
            where=(last.module,) if last.module else (),
            evidence=(
                Evidence("share of the class predicted most often", min(shares), limits.top_share),
                Evidence("loss over that of the best constant", ratio, limits.loss_share),
                Evidence("share of the most frequent label", largest, limits.imbalance),
            ),
            params={
                "share": 100 * min(shares),
                **loss,
                "prior": quoted.get("baseline"),
                "largest": 100 * largest,
            },
            variant="imbalance" if largest > limits.imbalance else "",
            key=last.module,
        )

    def _judge_weights(self, series: Series) -> Iterator[Draft]:
        """A weighted loss cannot be held against a constant's; but weights may favour what is frequent already."""
        limits, last = self.thresholds, series[-1]
        ratios = recent(series, "weight_ratio", len(series))
        if last.step < limits.after or not self._labels_differ(last) or not self._gives_up(series) or not ratios:
            return
        # A batch without the rare class says nothing of its weight.
        ratio = max(ratios)
        if ratio < limits.weight_ratio:
            return
        shares, largest = self._shares(series)
        yield Draft(
            severity="warning",
            confidence=0.8,
            step=0,
            where=(last.module,) if last.module else (),
            evidence=(
                Evidence("weight of the most frequent class over that of the rarest", ratio, limits.weight_ratio),
                Evidence("share of the class predicted most often", shares),
                Evidence("share of the most frequent label", largest, limits.imbalance),
            ),
            params={
                "share": 100 * shares,
                "loss": last.get("loss"),
                "prior": last.get("baseline"),
                "largest": 100 * largest,
                "ratio": ratio,
            },
            variant="weights",
            key=last.module,
        )

    def _shares(self, series: Series) -> tuple[float, float]:
        """Return the mean shares of the class predicted most often, and of the most frequent label."""
        n = self.thresholds.weighted_samples
        return fmean(recent(series, "top_share", n)), fmean(recent(series, "label_share", n))

    def _gives_up(self, series: Series) -> bool:
        """Whether one class is nearly all labels, and the others are next to never predicted."""
        limits = self.thresholds
        if min(len(recent(series, key, limits.weighted_samples)) for key in ("top_share", "label_share")) < 3:
            return False
        predicted, largest = self._shares(series)
        return largest > limits.imbalance and 1 - predicted < limits.found * (1 - largest)

    def _in_the_mean(self, view: View, last: SampledRow) -> float | None:
        """Return the mean loss of the last steps where it is no better than the constant's.

        Most batches hold no sample of a rare class.
        """
        losses = view.window("loss", self.thresholds.mean)
        if not is_whole(last) or len(losses) < self.thresholds.mean or not np.isfinite(losses).all():
            return None
        mean = float(losses.mean())
        return mean if mean / last.get("baseline") >= self.thresholds.loss_share else None

    def _quoted(self, view: View, mean: float) -> dict[str, object]:
        """Return what a message says of a mean loss: over which steps it is."""
        steps = view.window("step", self.thresholds.mean)
        return {"loss": mean, "loss_from": int(steps[0]), "loss_step": int(steps[-1]), "when": "@mean_of_steps"}

    def _labels_differ(self, row: SampledRow) -> bool:
        return row.get("baseline") > self.thresholds.entropy and row.get("labels_seen") >= self.thresholds.labels


def _any_mixed(series: Series) -> bool:
    """Whether some batch held labels of two classes: where each has one label by design, as of real and of generated
    samples in turn, one prediction for all of them is right."""
    return any(not row.get("label_entropy") <= 0 for row in series)
