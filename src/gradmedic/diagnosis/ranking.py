"""Which finding comes first: a linear score whose weights are data (`ranking.json`).

    score = prior(class) + w_severity * severity + w_confidence * confidence + w_onset * log(1 + onset - earliest onset)

The prior follows the order in which causes act on each other (data, wiring, loss, initialisation and gradient flow,
optimizer, precision, symptom). `benchmarks/patients/fit_ranking.py` fits the weights; so far the benchmark has too few
runs with a right finding beside a wrong one to move them. The signs of the other weights are fixed: a graver,
surer or earlier finding never ranks lower for it. A finding at "info" never precedes one at "warning" or above.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from gradmedic.diagnosis.finding import Finding, rank_of


@dataclass(frozen=True)
class Weights:
    """What the score is made of.

    Attributes:
        severity, confidence, onset: factors of the severity's rank (0 to 3), of the confidence (0 to 1), and of the
            logarithm of how much later than the earliest finding this one began.
        families: prior by the code's first digit; `codes` by code; `variants` by code and variant ("GM201/data"). The
            most specific one holds.
    """

    severity: float
    confidence: float
    onset: float
    families: Mapping[str, float]
    codes: Mapping[str, float]
    variants: Mapping[str, float]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Weights:
        """Read weights; unknown keys are left out."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__})

    def prior(self, code: str, variant: str = "") -> float:
        """Return the prior weight of a finding's class."""
        key = f"{code}/{variant}"
        if key in self.variants:
            return self.variants[key]
        return self.codes.get(code, self.families.get(code[2:3], min(self.families.values())))

    def score(self, finding: Finding, earliest: int) -> float:
        """Return the rank score of a finding; higher comes first."""
        onset = math.log1p(max(0, finding.step - earliest))
        factors = self.severity * rank_of(finding.severity) + self.confidence * finding.confidence
        return self.prior(finding.code, finding.variant) + factors + self.onset * onset


@lru_cache(maxsize=1)
def weights() -> Weights:
    """Return the weights that come with the package, read once, when first needed."""
    text = resources.files("gradmedic.diagnosis").joinpath("ranking.json").read_text(encoding="utf-8")
    return Weights.from_json(json.loads(text))


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, most likely root cause first; equal scores keep code order."""
    listed = list(findings)
    earliest = min((finding.step for finding in listed), default=0)
    fitted = weights()
    return sorted(
        listed,
        key=lambda finding: (
            finding.severity == "info",
            -fitted.score(finding, earliest),
            finding.code,
            finding.optimizer,
        ),
    )
