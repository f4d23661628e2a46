"""GM506 unnormalized-input: features of very different or very large scale, and a run that suffers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import still_harmed
from gradmedic.diagnosis.layout import is_norm
from gradmedic.diagnosis.view import View
from gradmedic.facts import Facts, InputFact
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """rules.md: ratio of spreads > 100, or rms > 10."""

    feature_ratio: float = 100.0
    rms: float = 10.0


class UnnormalizedInput:
    """Floating inputs of the first steps; a fault only where there is harm and no normalisation comes first."""

    code = "GM506"
    name = "unnormalized-input"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    period = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look every 10 tables, at the first steps and at the end."""
        if view.facts is None or not (view.due(self.period) or view.history.steps <= 3):
            return
        if _normalised_first(view.facts):
            return
        for entry in view.facts.inputs:
            if entry.dtype.startswith(("float", "bfloat")) and not _is_mask(entry):
                yield from self._judge(view, entry)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all."""
        return still_harmed(finding, view)

    def _judge(self, view: View, entry: InputFact) -> Iterator[Draft]:
        limits = self.thresholds
        rms = math.hypot(entry.mean, entry.std)
        ratio = entry.feature_ratio or 1.0
        large = rms > limits.rms
        # Small columns beside ordinary ones are merely ignored; large ones make the loss steep in one direction.
        uneven = ratio > limits.feature_ratio and rms > 1
        if not (large or uneven):
            return
        severity: Severity = "warning" if view.harm else "info"
        yield Draft(
            severity=severity,
            confidence=0.8 if view.harm else 0.4,
            # What the data are like, they are from the first batch on; in an unmodified script that one has gone by
            # before the model is known.
            step=0,
            where=(entry.name,),
            evidence=(
                Evidence("rms of the input", rms, limits.rms),
                Evidence("spread of features, largest over smallest", entry.feature_ratio, limits.feature_ratio),
            ),
            params={
                "rms": rms,
                "ratio": ratio,
                "low": entry.minimum,
                "high": entry.maximum,
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
            variant="uneven" if uneven else "",
            key=entry.name,
        )


def _normalised_first(facts: Facts) -> bool:
    """Whether the parameter that is used first belongs to a normalisation layer."""
    known = [fact for fact in facts.parameters.values() if fact.order is not None]
    return bool(known) and is_norm(min(known, key=lambda fact: fact.order if fact.order is not None else 0))


def _is_mask(entry: InputFact) -> bool:
    """Whether it holds two values, or one: additive masks, flags."""
    return entry.std == 0 or bool(entry.inf_count) or entry.minimum < -1e4
