"""GM113 tiny-batch-norm: batch normalisation over so few values that it takes away what it should scale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.module_rows import RowMemory, Series, recent
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """Values of each channel that a normalisation in training mode sees at once."""

    values: int = 2
    """rules.md: two values become -1 and 1, whatever they were."""
    single_values: int = 16
    """The same where they all come from one sample, whose own mean is then taken away."""
    samples: int = 3
    """Sampled steps whose median is judged: the last batch of an epoch may be small."""


class TinyBatchNorm:
    """Shapes of what batch normalisations in training mode are given."""

    code = "GM113"
    name = "tiny-batch-norm"
    kind: Kind = "invariant"
    needs: frozenset[str] = frozenset()
    sampled = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["batch_norm"])

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled steps, and at the end."""
        if not self._rows.take(view):
            return
        listed = [series for series in self._rows.series(view, "batch_norm") if self._known(series)]
        tiny = [series for series in listed if _values(series) <= self.thresholds.values]
        if tiny:
            yield self._draft(view, tiny, "")
            return
        single = [series for series in listed if median(recent(series, "samples", self.thresholds.samples)) == 1]
        if single:
            yield self._draft(view, single, "single")

    def _known(self, series: Series) -> bool:
        n = self.thresholds.samples
        in_training = [row.get("training") > 0 for row in list(series)[-n:]]
        return len(in_training) == n and all(in_training) and len(recent(series, "values", n)) == n

    def _draft(self, view: View, found: list[Series], variant: str) -> Draft:
        limits = self.thresholds
        found = sorted(found, key=_values)
        values = _values(found[0])
        few = values <= (limits.single_values if variant else limits.values)
        severity: Severity = "warning" if few or view.harm else "info"
        return Draft(
            severity="error" if few and view.harm else severity,
            confidence=0.9 if not variant else 0.7,
            step=found[0][0].step,
            where=tuple(dict.fromkeys(series[-1].module for series in found)),
            evidence=(
                Evidence("values of each channel", values, limits.single_values if variant else limits.values),
                Evidence("samples in the batch", median(recent(found[0], "samples", limits.samples))),
            ),
            params={
                "values": int(values),
                "samples": int(median(recent(found[0], "samples", limits.samples))),
                "layer": found[0][-1].module,
                "layers": len(found),
            },
            variant=variant,
        )


def _values(series: Series) -> float:
    return median(recent(series, "values", Thresholds.samples))
