"""GM308 degenerate-filters: many filters of a convolution are dead, or repeat each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import still_harmed
from gradmedic.diagnosis.module_rows import RowMemory, Series, recent
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """Share of a layer's filters (rules.md: 30 %)."""

    share: float = 0.3
    samples: int = 3
    """Sampled steps in which it is so."""


class DegenerateFilters:
    """Filters of the sampled steps; a fault only with harm: pruning makes such layers on purpose."""

    code = "GM308"
    name = "degenerate-filters"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    sampled = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["filters"])

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled steps, and at the end."""
        if not self._rows.take(view):
            return
        listed = list(self._rows.series(view, "filters"))
        for variant, column in (("", "dead_share"), ("duplicates", "duplicate_share")):
            found = [series for series in listed if self._degenerate(series, column)]
            if found:
                yield self._draft(view, sorted(found, key=lambda each: -each[-1].get(column)), variant, column)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all."""
        return still_harmed(finding, view)

    def _degenerate(self, series: Series, column: str) -> bool:
        limits = self.thresholds
        shares = recent(series, column, limits.samples)
        return len(shares) == limits.samples and min(shares) > limits.share

    def _draft(self, view: View, found: list[Series], variant: str, column: str) -> Draft:
        worst = found[0]
        row, share = worst[-1], worst[-1].get(column)
        severity: Severity = "warning" if view.harm else "info"
        name = "share of filters that repeat another" if variant else "share of dead filters"
        return Draft(
            severity=severity,
            confidence=0.7 if view.harm else 0.4,
            step=next(each.step for each in worst if each.get(column) > self.thresholds.share),
            where=tuple(dict.fromkeys(series[-1].module for series in found)),
            evidence=(
                Evidence(name, share, self.thresholds.share),
                Evidence("effective rank of the filters", row.get("effective_rank"), row.get("filters")),
            ),
            params={
                "share": 100 * share,
                "filters": int(row.get("filters")),
                "rank": row.get("effective_rank"),
                "layer": row.module,
                "layers": len(found),
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
            variant=variant,
            key=variant,
        )
