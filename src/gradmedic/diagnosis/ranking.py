"""Which finding comes first: a documented score, until a fitted one replaces it.

    score = prior(family) + 1.5 * severity + 2 * confidence - 0.6 * log(1 + onset - earliest onset)

The prior follows the order in which causes act on each other (rules.md, "Ordering solves most attribution"):
data -> wiring -> loss -> initialisation and gradient flow -> optimizer -> precision -> symptom. A finding at
"info" never precedes one at "warning" or above.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gradmedic.diagnosis.finding import Finding, rank_of

_DATA, _WIRING, _LOSS, _FLOW, _OPTIMIZER, _PRECISION, _SYMPTOM, _OWN = 6.0, 5.5, 5.0, 4.0, 3.8, 3.0, 2.5, 1.0

#: Codes whose place is not that of their family.
_PRIOR: dict[str, float] = {
    "GM202": _DATA,
    "GM201": _SYMPTOM,
    "GM203": _PRECISION,
    "GM204": _PRECISION,
    "GM205": _PRECISION,
    "GM206": _PRECISION,
    "GM404": _SYMPTOM,
    "GM409": _SYMPTOM,
    "GM505": _SYMPTOM,
    "GM509": _SYMPTOM,
    "GM512": _SYMPTOM,
    "GM515": _SYMPTOM,
    "GM411": _OWN,
    "GM412": _OWN,
}
_FAMILY: dict[str, float] = {"1": _WIRING, "2": _PRECISION, "3": _FLOW, "4": _OPTIMIZER, "5": _LOSS}


def prior(finding: Finding) -> float:
    """Return the prior weight of a finding's class; a non-finite value from the data or a bad weight ranks as data."""
    if finding.code == "GM201" and finding.variant in ("data", "parameter"):
        return _DATA
    # An explosion over time is what a step too large looks like; one over depth is a property of the network.
    if finding.code == "GM302" and finding.variant == "time":
        return _SYMPTOM
    return _PRIOR.get(finding.code, _FAMILY.get(finding.code[2:3], _SYMPTOM))


def score(finding: Finding, earliest: int) -> float:
    """Return the rank score; higher comes first."""
    onset = max(0, finding.step - earliest)
    return prior(finding) + 1.5 * rank_of(finding.severity) + 2.0 * finding.confidence - 0.6 * math.log1p(onset)


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, most likely root cause first; equal scores keep code order."""
    listed = list(findings)
    earliest = min((finding.step for finding in listed), default=0)
    return sorted(
        listed,
        key=lambda finding: (finding.severity == "info", -score(finding, earliest), finding.code, finding.optimizer),
    )
