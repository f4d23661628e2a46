"""GM514 input-ignored: what the model is fed, or what it makes of it, is the same for every sample."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.module_rows import RowMemory, SampledRow, Series, no_better_than_constant, recent
from gradmedic.diagnosis.probed import verdicts
from gradmedic.diagnosis.view import View


@dataclass(frozen=True)
class Thresholds:
    """When samples count as the same."""

    input_spread: float = 1e-6
    """Largest difference of a feature between samples, over the largest magnitude: the rounding of a float."""
    prediction_spread: float = 1e-5
    """The same of predictions: rounding that has gone through some layers."""
    samples: int = 3
    """Sampled steps in a row."""
    late_samples: int = 2
    """The same for predictions, of the steps behind `after`."""
    rows: int = 4
    """Samples in a batch, at least."""
    after: int = 40
    """Steps before which predictions may be the same: a last layer that starts at zero."""
    loss_share: float = 0.95
    """Part of the loss of the best constant prediction from which on nothing is learned."""
    label_share: float = 0.95
    """Share of the most frequent label above which labels hardly differ."""


class InputIgnored:
    """Inputs, predictions and labels of the sampled steps, and input probes."""

    code = "GM514"
    name = "input-ignored"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    sampled = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["loss"])
        self._same: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._varied: set[str] = set()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled steps, at the end, and at input probes as they come."""
        for event in verdicts(view, "input", "ignored"):
            yield self._probed(event)
        if view.several_optimizers or not self._rows.take(view):
            return
        known = list(self._rows.series(view, "loss"))
        if not view.final:
            yield from self._inputs(view, known)
        for series in known:
            yield from self._predictions(view, series)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when inputs differ later, or the loss falls below that of a constant."""
        if finding.optimizer != view.frame.optimizer or finding.variant == "probe":
            return True
        if finding.variant == "":
            return view.frame.optimizer not in self._varied
        return not self._rows.learned(view, finding)

    def _inputs(self, view: View, known: Sequence[Series]) -> Iterator[Draft]:
        limits, name = self.thresholds, view.frame.optimizer
        rows = [SampledRow(view.frame.step, row) for row in view.frame.modules if row.get("what") == "input"]
        rows = [row for row in rows if row.get("rows") >= limits.rows and math.isfinite(row.get("row_spread"))]
        if not rows:
            return
        widest = max(row.get("row_spread") for row in rows)
        if widest > limits.input_spread:
            self._same[name] = 0
            self._varied.add(name)
            return
        if not any(self._labels_differ(series[-1]) for series in known):
            return
        self._same[name] = self._same.get(name, 0) + 1
        self._first.setdefault(name, view.frame.step)
        if self._same[name] >= limits.samples and name not in self._varied:
            yield Draft(
                severity="error",
                confidence=0.95,
                step=self._first[name],
                where=tuple(dict.fromkeys(row.module for row in rows if row.module)),
                evidence=(
                    Evidence("largest difference between samples, of the input", widest, limits.input_spread),
                    Evidence("samples compared", rows[0].get("rows"), limits.rows),
                ),
                params={"rows": int(rows[0].get("rows")), "harm": view.harm.phrase}
                | {"loss_first": view.loss.first, "loss_recent": view.loss.recent},
            )

    def _predictions(self, view: View, series: Series) -> Iterator[Draft]:
        limits, last = self.thresholds, series[-1]
        if last.step < limits.after or view.frame.optimizer not in self._varied or not self._labels_differ(last):
            return
        late = [row for row in series if row.step >= limits.after]
        spreads = recent(late, "row_spread", limits.samples)
        if len(spreads) < limits.late_samples or max(spreads) > limits.prediction_spread:
            return
        ratio = no_better_than_constant(late, limits.late_samples, limits.loss_share)
        if ratio is None:
            return
        yield Draft(
            severity="warning",
            confidence=0.75,
            step=next(row.step for row in series if row.get("row_spread") <= limits.prediction_spread),
            where=(last.module,) if last.module else (),
            evidence=(
                Evidence(
                    "largest difference between samples, of the prediction", max(spreads), limits.prediction_spread
                ),
                Evidence("loss over that of the best constant", ratio, limits.loss_share),
            ),
            params={"spread": max(spreads), "ratio": ratio},
            variant="prediction",
            key=f"prediction/{last.module}",
        )

    def _labels_differ(self, row: SampledRow) -> bool:
        share, spread = row.get("label_share"), row.get("target_std")
        if math.isfinite(share):
            return share < self.thresholds.label_share
        return spread > 1e-3 * max(row.get("target_rms"), 1e-12)

    def _probed(self, event: Mapping[str, Any]) -> Draft:
        numbers = event.get("numbers") or {}
        loss, other = float(numbers.get("loss", math.nan)), float(numbers.get("loss_of_others", math.nan))
        return Draft(
            severity="warning",
            confidence=0.9,
            step=int(event.get("step") or 0),
            evidence=(
                Evidence("loss of a batch", loss),
                Evidence("loss of that batch with the inputs of other samples", other, loss),
            ),
            params={"loss": loss, "other": other},
            variant="probe",
        )
