"""What is wrong with the run, and what could not be judged, in every language of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gradmedic.diagnosis import Finding
from gradmedic.diagnosis.coverage import Coverage
from gradmedic.diagnosis.engine import in_language
from gradmedic.diagnosis.finding import rank_of
from gradmedic.diagnosis.ranking import ranked
from gradmedic.diagnosis.ranks import one_of_several
from gradmedic.diagnosis.suppression import fold
from gradmedic.record.arrays import codes_of
from gradmedic.report.text_words import WORDS
from gradmedic.report.views.source import Source

LANGUAGES: tuple[str, ...] = ("en", "zh")


def recorded_findings(events: Iterable[dict[str, Any]]) -> list[Finding]:
    """Return the findings that were made while the run trained, ranked and folded as a diagnosis has them.

    They cost nothing to read. What a rule has taken back since is still among them, and a run that was killed lacks
    what rules say only at the end.
    """
    held: list[Finding] = []
    for event in events:
        if event.get("kind") != "finding":
            continue
        try:
            finding = Finding.from_json(event["finding"])
        except (KeyError, TypeError, ValueError, AttributeError):  # damaged
            continue
        held = [old for old in held if not _supersedes(finding, old)] + [finding]
    return list(fold(ranked(held)))


def finding_entries(findings: Sequence[Finding]) -> dict[str, list[dict[str, Any]]]:
    """Return findings as JSON by language; each has a "url_key" that names it among those of its run."""
    keys = _url_keys(findings)
    return {
        lang: [
            {**_worded(finding, lang).to_json(full=True), "url_key": key}
            for finding, key in zip(findings, keys, strict=True)
        ]
        for lang in LANGUAGES
    }


def not_judged(source: Source) -> dict[str, list[str]]:
    """Return what could not be judged, and why, one text each, by language."""
    losses = source.steps["loss"]
    graphs = "loss" in codes_of(source.modules["what"])[1]
    coverage = Coverage(
        steps=source.steps.num_rows,
        losses=len(losses) - losses.null_count,
        tables=source.tensors.num_rows,
        modules=source.modules.num_rows,
        graphs=int(graphs),
    )
    reasons = [entry.reason for entry in coverage.not_judged(source.facts, alone=one_of_several(source.run))]
    return {lang: [WORDS[lang].get(reason, reason) for reason in reasons] for lang in LANGUAGES}


def named_places(findings: Iterable[Finding]) -> list[tuple[str, tuple[str, ...], str]]:
    """Return (severity, where, code) of all findings, those folded under others included."""
    found: list[tuple[str, tuple[str, ...], str]] = []
    for finding in findings:
        found.append((finding.severity, finding.where, finding.code))
        found += named_places(finding.folded)
    return found


def _supersedes(new: Finding, old: Finding) -> bool:
    """Whether a rule said the same again, graver: of the same places, or from the same step on."""
    graver = rank_of(new.severity) - rank_of(old.severity)
    if (new.code, new.optimizer) != (old.code, old.optimizer) or graver < 0:
        return False
    same_place = new.where == old.where or bool(set(new.where) & set(old.where))
    return same_place or (graver > 0 and new.step == old.step)


def _worded(finding: Finding, lang: str) -> Finding:
    if finding.lang == lang:
        return finding
    try:
        return in_language(finding, lang)
    except Exception:  # of another version, whose wording needs other numbers: as it was written down
        return finding


def _url_keys(findings: Sequence[Finding]) -> list[str]:
    keys: list[str] = []
    for finding in findings:
        key = f"{finding.code}-{finding.step}"
        same = sum(1 for other in keys if other == key or other.startswith(f"{key}-"))
        keys.append(f"{key}-{same + 1}" if same else key)
    return keys
