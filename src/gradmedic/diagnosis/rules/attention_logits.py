"""GM310 attention-logits: products of queries and keys so large that attention becomes a hard choice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import still_harmed
from gradmedic.diagnosis.module_rows import RowMemory, Series, recent
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity

#: Samples of so early a step show how attention was initialised.
_FIRST_STEPS = 3
#: Heads of fewer dimensions have small products, divided or not.
_DEEP = 8


@dataclass(frozen=True)
class Thresholds:
    """Largest logit."""

    notice: float = 1e3
    fault: float = 1e4
    """Wortsman et al. 2023 (arXiv 2309.14322): every configuration above it diverged."""
    hard: float = 0.9
    """Share of heads that look at one position in the first sample: with logits above `notice`, a softmax that starts
    with no slope. Sinks of a model that was trained before leave most heads soft."""
    entropy: float = 0.25
    """Over ln T, mean of the heads. Where products of queries and keys are multiplied by more than 1 and attention
    begins below this, the factor has made it hard: random heads begin above 0.8 (measured)."""
    logit: float = 20.0
    """And the largest logit of that first sample: normalised queries and keys are multiplied by 10 in good health."""


class AttentionLogits:
    """The largest attention logit of the sampled steps."""

    code = "GM310"
    name = "attention-logits"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    sampled = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["attention"])

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled steps, and at the end."""
        if not self._rows.take(view):
            return
        limit = self.thresholds.notice
        high = [
            series
            for series in self._rows.series(view, "attention")
            if any(value > limit for value in recent(series, "max_logit", 1))
        ]
        if high:
            ordered = sorted(high, key=lambda series: -series[-1].get("max_logit"))
            yield self._draft(view, ordered, self._hard_from_start(high))
        multiplied = [series for series in self._rows.series(view, "attention") if self._is_multiplied(series)]
        if multiplied and not high:
            yield self._hard_scale(view, multiplied, "multiplied")
        undivided = self._undivided(view)
        if undivided and not high and not multiplied:
            yield self._hard_scale(view, undivided, "undivided")

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all, or attention has softened, where it rested on that."""
        if finding.severity == "error":
            return True
        if finding.variant == "initial" and finding.optimizer == view.frame.optimizer:
            return any(self._still_hard(series) for series in self._rows.series(view, "attention"))
        if finding.variant in ("multiplied", "undivided"):
            here = [each for each in self._rows.series(view, "attention") if each[-1].module in finding.where]
            return finding.optimizer != view.frame.optimizer or any(self._has_stayed_hard(series) for series in here)
        return still_harmed(finding, view)

    def _hard_from_start(self, high: Sequence[Series]) -> float:
        """Return the share of heads that look at one position in the first samples; 0 where these were not too large.

        The first rows of a module may have been taken before its name was known.
        """
        first = [series[0] for series in high if series[0].step < _FIRST_STEPS]
        heads = sum(row.get("heads") for row in first if row.get("max_logit") > self.thresholds.notice)
        low = sum(
            row.get("heads") * row.get("low_heads") for row in first if row.get("max_logit") > self.thresholds.notice
        )
        return low / heads if heads > 0 and low >= self.thresholds.hard * heads else 0.0

    def _is_multiplied(self, series: Series) -> bool:
        """Whether a factor above 1 has made attention hard from the start, and it still is."""
        return series[0].get("factor") > 1 and self._has_stayed_hard(series)

    def _undivided(self, view: View) -> list[Series]:
        """Return all attention of a model whose products are nowhere divided, if all of it began hard, and some is.

        Models that leave the division out by design begin soft, with smaller weights; those of them that were trained
        before have soft and hard layers.
        """
        begun = [series for series in self._rows.series(view, "attention") if series[0].step < _FIRST_STEPS]
        bare = all(series[0].get("factor") == 1 and series[0].get("depth") >= _DEEP for series in begun)
        hard = bare and all(self._began_hard(series) for series in begun)
        return begun if hard and any(self._has_stayed_hard(series) for series in begun) else []

    def _began_hard(self, series: Series) -> bool:
        limits, first = self.thresholds, series[0]
        return first.get("max_logit") > limits.logit and first.get("entropy") < limits.entropy

    def _has_stayed_hard(self, series: Series) -> bool:
        begun = series[0].step < _FIRST_STEPS and self._began_hard(series)
        return begun and series[-1].get("entropy") < self.thresholds.entropy

    def _hard_scale(self, view: View, listed: list[Series], variant: str) -> Draft:
        first = max((series[0] for series in listed), key=lambda row: row.get("factor"))
        usual = 1 / math.sqrt(first.get("depth"))
        entropy = fmean(series[0].get("entropy") for series in listed)
        return Draft(
            severity="warning",
            confidence=0.75 if variant == "multiplied" else 0.7,
            step=min(series[0].step for series in listed),
            where=_modules(listed),
            evidence=(
                Evidence("factor on the products of queries and keys", first.get("factor"), usual),
                Evidence("entropy of attention over ln T", entropy, self.thresholds.entropy),
                Evidence("largest attention logit, first sample", first.get("max_logit")),
            ),
            params={
                "value": first.get("max_logit"),
                "first": first.get("max_logit"),
                "factor": first.get("factor"),
                "depth": int(first.get("depth")),
                "usual": usual,
                "entropy": 100 * entropy,
                "share": 0.0,
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
                "unscaled": "",
            },
            variant=variant,
        )

    def _still_hard(self, series: Series) -> bool:
        return series[-1].get("max_logit") > self.thresholds.notice and series[-1].get("low_heads") > 0.5

    def _draft(self, view: View, high: list[Series], hard: float) -> Draft:
        limits, worst = self.thresholds, high[0]
        value = worst[-1].get("max_logit")
        fault = value > limits.fault
        severity: Severity = "error" if fault else ("warning" if view.harm or hard else "info")
        unscaled = worst[-1].get("unscaled") > 0
        return Draft(
            severity=severity,
            confidence=0.9 if fault else 0.7,
            step=next(row.step for row in worst if row.get("max_logit") > limits.notice),
            where=_modules(high),
            evidence=(
                Evidence("largest attention logit", value, limits.fault if fault else limits.notice),
                Evidence("largest attention logit, first sample", worst[0].get("max_logit")),
            ),
            params={
                "value": value,
                "first": worst[0].get("max_logit"),
                "share": 100 * hard,
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
                "unscaled": "@not_divided" if unscaled else "",
            },
            variant="initial" if hard else "",
        )


def _modules(series: list[Series]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each[-1].module for each in series if each[-1].module))
