"""Findings as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradmedic.diagnosis import Evidence, Finding
from gradmedic.diagnosis.wording import label, unit
from gradmedic.report.notebook.markup import FAINT, box, escaped, heading, name, number, severity, table
from gradmedic.report.notebook.words import WORDS

#: Names that are spelled out, and remedies that are shown, of one finding.
_NAMES, _REMEDIES = 4, 3
#: Findings that are shown.
_SHOWN = 40


def findings_html(findings: Sequence[Finding]) -> str:
    """Return findings as HTML: code and title, severity, step, place, message, remedies; evidence opens on demand.

    They read in the language that they were made in.

    Example:
        >>> "Nothing found" in findings_html([])
        True
    """
    say = WORDS[findings[0].lang if findings else "en"]
    if not findings:
        return box(heading(say["healthy"]))
    count = say["found" if len(findings) == 1 else "found_many"].format(n=len(findings))
    entries = [_entry(finding, say) for finding in findings[:_SHOWN]]
    if len(findings) > _SHOWN:
        entries.append(f'<div style="{FAINT}">{say["more"].format(n=len(findings) - _SHOWN)}</div>')
    return box(heading(count), *entries)


def _entry(finding: Finding, say: Mapping[str, str]) -> str:
    badge = severity(finding.severity, finding.severity)
    title = f"{escaped(finding.code)} {escaped(finding.title or finding.name)}"
    place = _places(finding.where, say)
    parts = [
        f'<div style="margin-top:8px">{badge} <b>{title}</b> '
        f'<span style="{FAINT}">{_step(finding, say)} · {place}</span></div>',
        f"<div>{escaped(finding.message)}</div>",
    ]
    if finding.remedies:
        items = "".join(f"<li>{escaped(remedy.text)}</li>" for remedy in finding.remedies[:_REMEDIES])
        parts.append(f'<div style="{FAINT}">{say["remedy"]}</div><ul style="margin:0 0 4px 0">{items}</ul>')
    if finding.evidence:
        rows = [_evidence(entry, finding.lang) for entry in finding.evidence]
        inner = table([say["evidence"], say["value"], say["threshold"]], rows)
        parts.append(f"<details><summary>{say['evidence']}</summary>{inner}</details>")
    if finding.folded:
        named = "; ".join(
            f"{escaped(each.code)} {escaped(each.title or each.name)} ({_step(each, say)})" for each in finding.folded
        )
        parts.append(f'<div style="{FAINT}">{say["follows"]}: {named}</div>')
    return "".join(parts)


def _step(finding: Finding, say: Mapping[str, str]) -> str:
    return say["step"].format(step=int(finding.step))


def _places(where: Sequence[str], say: Mapping[str, str]) -> str:
    if not where:
        return say["whole_run"]
    more = f" {say['more'].format(n=len(where) - _NAMES)}" if len(where) > _NAMES else ""
    return ", ".join(name(each) for each in where[:_NAMES]) + more


def _evidence(entry: Evidence, lang: str) -> list[str]:
    values = []
    for value in (entry.value, entry.threshold):
        behind = f" {escaped(unit(entry.unit, value, lang))}" if entry.unit else ""
        text = escaped(value) if isinstance(value, str) else number(value)
        values.append("–" if value is None else text + behind)
    return [escaped(label(entry.name, lang)), *values]
