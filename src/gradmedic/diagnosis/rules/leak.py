"""GM513 leak: a model that is to predict the next token sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.module_rows import RowMemory, SampledRow, Series, recent
from gradmedic.diagnosis.probed import verdicts
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """When a look ahead is a leak."""

    next_share: float = 0.95
    """Share of the targets that are the next id: a text may be cut, or a few targets replaced."""
    same_share: float = 0.9
    """Share of the targets that are the id at their own place, above which the text is one token over and over."""
    ahead: float = 0.01
    """Mean share of attention on later places; a causal mask leaves exactly 0."""
    kept_share: float = 0.6
    """Share of targets that count: below, a prefix may be read as a whole on purpose (prefix language models)."""
    samples: int = 2
    """Sampled steps in a row."""
    low_loss: float = 0.25
    """Part of the loss of guessing by frequency that a language model does not get below in its first epochs."""


class Leak:
    """Attention and recurrence that look ahead of the text whose next token is to be predicted; future probes."""

    code = "GM513"
    name = "leak"
    kind: Kind = "invariant"
    needs: frozenset[str] = frozenset()
    sampled = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["attention", "backward_in_time", "loss"])
        self._several: set[str] = set()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled steps, and at future probes as they come."""
        for event in verdicts(view, "future", "leak"):
            yield self._probed(event)
        if not self._rows.take(view):
            return
        ahead = [series for series in self._rows.series(view, "attention") if self._looks_ahead(series)]
        backward = [series for series in self._rows.series(view, "backward_in_time") if self._is_next(series)]
        if self._other_texts(view):
            return
        if ahead or backward:
            yield self._draft(view, ahead, backward)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when a second text turns up that has the same targets (an encoder and its decoder)."""
        return finding.variant == "probe" or finding.optimizer not in self._several

    def _other_texts(self, view: View) -> bool:
        """Whether several texts fit the targets: a sequence autoencoder reads whole what its decoder predicts."""
        groups = {
            series[-1].get("group")
            for what in ("attention", "backward_in_time")
            for series in self._rows.series(view, what)
            if series[-1].get("next_share") >= self.thresholds.next_share
        }
        if len(groups) > 1:
            self._several.add(view.frame.optimizer)
        return view.frame.optimizer in self._several

    def _is_next(self, series: Series) -> bool:
        limits = self.thresholds
        shares, same = recent(series, "next_share", limits.samples), recent(series, "same_share", limits.samples)
        return len(shares) == limits.samples and min(shares) >= limits.next_share and max(same) < limits.same_share

    def _looks_ahead(self, series: Series) -> bool:
        weights = recent(series, "ahead", self.thresholds.samples)
        fits = series[-1].get("keys") == series[-1].get("length")
        return fits and self._is_next(series) and len(weights) > 1 and min(weights) > self.thresholds.ahead

    def _draft(self, view: View, ahead: Sequence[Series], backward: Sequence[Series]) -> Draft:
        limits = self.thresholds
        found = [*ahead, *backward]
        first = min((row for series in found for row in series), key=lambda row: row.step)
        kept = min(min(recent(series, "kept_share", limits.samples)) for series in found)
        loss = next((series[-1] for series in self._rows.series(view, "loss")), None)
        low = loss is not None and loss.get("loss") < limits.low_loss * loss.get("baseline")
        sure = kept >= limits.kept_share or low
        severity: Severity = "error" if sure else "info"
        weight = max((row.get("ahead") for row in (series[-1] for series in ahead)), default=1.0)
        return Draft(
            severity=severity,
            confidence=0.97 if sure else 0.5,
            step=first.step,
            where=tuple(dict.fromkeys(series[-1].module for series in found if series[-1].module)),
            evidence=(
                Evidence("share of the targets that are the next input", first.get("next_share"), limits.next_share),
                Evidence("share of attention on later places", weight, limits.ahead),
                *_loss_evidence(loss, limits.low_loss),
            ),
            params={"share": 100 * first.get("next_share"), "weight": 100 * weight, "low": "@leak_low" if low else ""},
            variant="" if ahead else "recurrent",
        )

    def _probed(self, event: Mapping[str, Any]) -> Draft:
        numbers = event.get("numbers") or {}
        change, share = float(numbers.get("change", 0.0)), float(numbers.get("next_share", 0.0))
        return Draft(
            severity="error",
            confidence=0.99,
            step=int(event.get("step") or 0),
            evidence=(
                Evidence("change of earlier predictions by later inputs", change, 0.0),
                Evidence("share of the targets that are the next input", share, self.thresholds.next_share),
            ),
            params={"change": change, "share": 100 * share},
            variant="probe",
        )


def _loss_evidence(loss: SampledRow | None, share: float) -> tuple[Evidence, ...]:
    if loss is None or not loss.get("baseline") > 0:
        return ()
    return (Evidence("loss over that of the best constant", loss.get("loss") / loss.get("baseline"), share),)
