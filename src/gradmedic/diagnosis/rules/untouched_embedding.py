"""GM309 untouched-embedding: most rows of an embedding are never asked for, because ids collapse to few values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.module_rows import RowMemory, SampledRow, Series
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """rules.md: more than half of the rows untouched after an epoch."""

    untouched: float = 0.5
    collapsed: float = 0.98
    """Share of untouched rows from which on it is no generous vocabulary any more: ids lose what tells them apart."""
    rows: int = 500
    """Smaller tables are cheap to have too large."""
    small: int = 32
    """Tables with fewer rows (kinds, segments) are left out."""
    unseen: float = 1e-3
    """Chance that the next id is a new one (Good 1953: rows seen once, over lookups) above which rows that were not
    seen may just be rare."""
    repeats: float = 8.0
    """Lookups for each row that was seen, before anything is said."""
    batches: int = 3
    """Sampled steps."""


class UntouchedEmbedding:
    """Rows that were asked for on the sampled steps, and what that says of the others."""

    code = "GM309"
    name = "untouched-embedding"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    sampled = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["embedding"])

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled steps, and at the end."""
        if not self._rows.take(view):
            return
        for series in self._rows.series(view, "embedding"):
            row = series[-1]
            if self._known(row) and self._untouched(row) > self.thresholds.untouched:
                yield self._draft(view, series)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when rows turn up after all."""
        if finding.optimizer not in ("", view.frame.optimizer):
            return True
        limits = self.thresholds
        limit = limits.untouched if finding.severity == "info" else limits.collapsed
        return all(
            self._untouched(series[-1]) > limit
            for series in self._rows.series(view, "embedding")
            if _name(series[-1]) in finding.where
        )

    def _known(self, row: SampledRow) -> bool:
        """Whether what was not seen can be said to be unused."""
        limits = self.thresholds
        touched, lookups = row.get("touched"), row.get("lookups")
        if not row.get("rows") >= limits.small or not touched > 0 or row.get("batches") < limits.batches:
            return False
        enough = row.get("once") <= limits.unseen * lookups and lookups >= limits.repeats * touched
        # Positions (0 .. length - 1) come equally often, in every batch: a table longer than the text is no fault.
        even = row.get("top_share") * lookups - row.get("least") < 0.5
        return enough and not (even and touched > 1)

    def _untouched(self, row: SampledRow) -> float:
        return 1 - row.get("touched") / row.get("rows")

    def _draft(self, view: View, series: Series) -> Draft:
        limits, row = self.thresholds, series[-1]
        share = self._untouched(row)
        collapsed = share >= limits.collapsed and row.get("rows") >= limits.rows
        severity: Severity = "warning" if collapsed else "info"
        return Draft(
            severity=severity,
            confidence=0.8 if collapsed else 0.5,
            step=series[0].step,
            where=(_name(row),),
            evidence=(
                Evidence("share of rows that are never asked for", share, limits.collapsed if collapsed else 0.5),
                Evidence("rows that are used", row.get("touched")),
                Evidence("share of lookups that go to one row", row.get("top_share")),
            ),
            params={
                "share": 100 * share,
                "touched": int(row.get("touched")),
                "rows": int(row.get("rows")),
                "lookups": int(row.get("lookups")),
            },
            variant="collapsed" if collapsed else "",
            key=_name(row),
        )


def _name(row: SampledRow) -> str:
    return row.module or row.leaf
