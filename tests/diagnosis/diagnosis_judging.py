"""One rule at a time on a run, with its own errors raised."""

from __future__ import annotations

from gradmedic.diagnosis import Engine, Finding
from gradmedic.diagnosis.replay import replay
from gradmedic.facts import Facts


def judge(run, *rules, lang: str = "en") -> list[Finding]:
    """What the given rules say of a run."""
    engine = Engine(rules=list(rules), strict=True, lang=lang)
    replay(run, engine)
    return engine.findings()


def severities(run, *rules) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in judge(run, *rules)]


def facts_with(parameters, kind: str = "AdamW", **defaults) -> Facts:
    """Facts of one optimizer "SGD" of the given class and settings that owns these parameters."""
    return Facts(
        parameters={entry.name: entry for entry in parameters},
        optimizers={"SGD": {"class": kind, "defaults": defaults}},
    )
