"""GM311 attention-entropy: heads that look at one position only, with logits that have grown, in a run that suffers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import still_harmed
from gradmedic.diagnosis.module_rows import RowMemory, Series, recent
from gradmedic.diagnosis.view import View


@dataclass(frozen=True)
class Thresholds:
    """rules.md: entropy over ln T below 0.05 in 25 % of the heads, with growing logits."""

    entropy: float = 0.05
    heads: float = 0.25
    growth: float = 2.0
    """Largest logit now over that of the first sample: sinks and induction heads are low in entropy and healthy."""
    logit: float = 100.0
    """Or logits so large from the start that no softmax is soft."""
    after: int = 40
    """Steps before which harm is not known."""


class AttentionEntropy:
    """Entropy of the attention heads in the sampled steps."""

    code = "GM311"
    name = "attention-entropy"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    sampled = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["attention"])

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled steps, and at the end; a collapse without harm is nothing."""
        if not self._rows.take(view) or not view.harm:
            return
        listed = [series for series in self._rows.series(view, "attention") if recent(series, "low_heads", 1)]
        heads = sum(series[-1].get("heads") for series in listed)
        low = sum(series[-1].get("heads") * series[-1].get("low_heads") for series in listed)
        if not heads or low / heads < self.thresholds.heads:
            return
        collapsed = [series for series in listed if series[-1].get("low_heads") > 0]
        if any(self._grown(series) for series in collapsed):
            yield self._draft(view, collapsed, low / heads)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all."""
        return still_harmed(finding, view)

    def _grown(self, series: Series) -> bool:
        last, first = series[-1].get("max_logit"), series[0].get("max_logit")
        return last > self.thresholds.logit or (len(series) > 1 and last > self.thresholds.growth * max(first, 1.0))

    def _draft(self, view: View, collapsed: list[Series], share: float) -> Draft:
        limits = self.thresholds
        worst = max(collapsed, key=lambda series: series[-1].get("low_heads"))
        logits = [series[-1].get("max_logit") for series in collapsed]
        largest = max((value for value in logits if math.isfinite(value)), default=math.nan)
        return Draft(
            severity="warning",
            confidence=0.6,
            step=next(row.step for row in worst if row.get("low_heads") > 0),
            where=tuple(dict.fromkeys(series[-1].module for series in collapsed if series[-1].module)),
            evidence=(
                Evidence("share of heads that look at one position", share, limits.heads),
                Evidence("entropy of attention over ln T", worst[-1].get("entropy"), limits.entropy),
                Evidence("largest attention logit", largest),
            ),
            params={
                "share": 100 * share,
                "value": largest,
                "first": worst[0].get("max_logit"),
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
        )
