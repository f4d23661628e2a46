"""GM202 bad-input: NaN, infinity or a constant in what the model is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.view import View
from gradmedic.facts import InputFact
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """What an input may look like."""

    constant_steps: int = 3
    """Steps in which the only floating input was one and the same number."""
    raw_image_maximum: float = 100.0
    """Images whose values reach this look like 0..255; only a note (a first BatchNorm copes)."""


class BadInput:
    """What the model was given in the first steps."""

    code = "GM202"
    name = "bad-input"
    kind: Kind = "invariant"
    needs: frozenset[str] = frozenset()

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._seen = 0

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at inputs that are new."""
        if view.facts is None or (len(view.facts.inputs) == self._seen and not view.final):
            return
        self._seen = len(view.facts.inputs)
        for entry in view.facts.inputs:
            if entry.nan_count or (entry.inf_count and not _is_mask(entry)):
                yield self._nonfinite(entry)
            elif self._is_raw_image(entry):
                yield _draft("info", 0.7, entry, "raw_image", Evidence("maximum", entry.maximum, 1.0))
        yield from self._constant(view)

    def _nonfinite(self, entry: InputFact) -> Draft:
        bad = entry.nan_count + entry.inf_count
        return _draft("error", 0.95, entry, "nonfinite", Evidence("non-finite elements", bad, 0, "elements"))

    def _is_raw_image(self, entry: InputFact) -> bool:
        pixels = len(entry.shape) == 4 and entry.minimum >= 0 and entry.maximum <= 255
        return pixels and entry.maximum >= self.thresholds.raw_image_maximum

    def _constant(self, view: View) -> Iterator[Draft]:
        """A constant is a fault only when it is all that the model gets; masks and initial states are constant too."""
        assert view.facts is not None
        inputs = [entry for entry in view.facts.inputs if entry.dtype.startswith(("float", "bfloat"))]
        others = [entry for entry in view.facts.inputs if entry not in inputs]
        values = {entry.minimum for entry in inputs if entry.std == 0 and not entry.nan_count}
        steps = {entry.step for entry in inputs}
        alike = len(values) == 1 and all(entry.std == 0 for entry in inputs)
        if not others and alike and len(steps) >= self.thresholds.constant_steps and _size(inputs[0]) > 1:
            harmed = view.harm.reason == "not_falling"
            evidence = Evidence("standard deviation", 0.0, 0.0)
            yield _draft("warning" if harmed else "info", 0.7, inputs[0], "constant", evidence)


def _draft(severity: Severity, confidence: float, entry: InputFact, variant: str, evidence: Evidence) -> Draft:
    return Draft(
        severity=severity,
        confidence=confidence,
        step=entry.step,
        where=(entry.name,),
        evidence=(evidence,),
        params={
            "nan": entry.nan_count,
            "inf": entry.inf_count,
            "value": entry.minimum,
            "low": entry.minimum,
            "high": entry.maximum,
        },
        variant=variant,
        key=f"{variant}/{entry.name}",
        optimizer="",
    )


def _is_mask(entry: InputFact) -> bool:
    """Whether the finite part is zero throughout: an additive attention mask of 0 and -inf."""
    return not entry.nan_count and entry.minimum == entry.maximum == 0


def _size(entry: InputFact) -> int:
    size = 1
    for length in entry.shape:
        size *= length
    return size
