"""GM304 saturated-units: units of a bounded activation that are at their limits for nearly every sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import still_harmed
from gradmedic.diagnosis.module_rows import RowMemory, SampledRow, Series
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """rules.md: more than half of the units, each for more than 90 % of its samples (|tanh| > 0.97: Karpathy)."""

    units: float = 0.5
    """Share of units that are saturated for more than 90 % of their samples."""
    elements: float = 0.9
    """Share of all elements, where units were not counted."""
    samples: int = 3


class SaturatedUnits:
    """Saturation of hidden activations in the sampled steps; gates and the output are meant to saturate."""

    code = "GM304"
    name = "saturated-units"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    sampled = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["activation", "output"])

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled steps, and at the end."""
        if not self._rows.take(view):
            return
        for kind in ("activation", "output"):
            listed = [series for series in self._rows.series(view, kind) if _known(series[-1])]
            if listed:
                saturated = [series for series in listed if self._is_saturated(series)]
                if saturated:
                    yield self._draft(view, saturated)
                return

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all."""
        return still_harmed(finding, view)

    def _is_saturated(self, series: Series) -> bool:
        limits = self.thresholds
        last = list(series)[-limits.samples :]
        return len(last) == limits.samples and all(self._excess(row) > 0 for row in last)

    def _excess(self, row: SampledRow) -> float:
        units = row.get("saturated_units")
        if units == units:
            return units / row.get("units") - self.thresholds.units
        return row.get("saturated_frac") - self.thresholds.elements

    def _draft(self, view: View, saturated: list[Series]) -> Draft:
        severity: Severity = "warning" if view.harm else "info"
        worst = max(saturated, key=lambda series: series[-1].get("saturated_frac"))
        share = median(row.get("saturated_frac") for row in list(worst)[-self.thresholds.samples :])
        return Draft(
            severity=severity,
            confidence=0.7 if view.harm else 0.4,
            step=next(row.step for row in worst if self._excess(row) > 0),
            where=tuple(dict.fromkeys(series[-1].module for series in saturated)),
            evidence=(Evidence("share of saturated activations", share, self.thresholds.units),),
            params={
                "share": 100 * share,
                "layers": len(saturated),
                "layer": worst[-1].module,
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
        )


def _known(row: SampledRow) -> bool:
    return row.get("saturated_frac") == row.get("saturated_frac") and not row.get("gate") > 0
