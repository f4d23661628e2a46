"""The check-up in the terminal, and findings as text, markdown or JSON."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradmedic.diagnosis import wording
from gradmedic.diagnosis.engine import in_language
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.errors import InputError
from gradmedic.report.explain import explain as explain
from gradmedic.report.paragraph import Paragraph
from gradmedic.report.run_summary import RunSummary, summarize
from gradmedic.report.text_words import WORDS

__all__ = ["explain", "render_checkup", "render_findings"]

FORMATS: tuple[str, ...] = ("text", "markdown", "json")
#: So many findings are shown in full; the others are named, so that the screen stays one screen.
SHOWN = 3
_STYLES = {"info": "cyan", "warning": "yellow", "error": "red", "critical": "bold red"}


def render_checkup(
    run: Any,
    findings: Sequence[Finding],
    *,
    lang: str = "en",
    console: Console | None = None,
    width: int | None = None,
) -> str | None:
    """Show a run and its findings on one screen.

    Args:
        run: anything with `meta`, `events` and `frames()`.
        findings: ranked, as `diagnose` returns them.
        lang: "en" or "zh".
        console: where to print; None returns the text, without colour.
        width: columns; by default the console's, or 80.

    Returns:
        None when printed to a console, else the text.
    """
    wording.messages(lang)
    listed = [finding if finding.lang == lang else in_language(finding, lang) for finding in findings]
    summary = summarize(run)
    screen = Group(*_screen(run, summary, listed, lang))
    if console is not None:
        console.print(screen, width=width)
        return None
    plain = Console(file=io.StringIO(), width=width or 80, color_system=None, force_terminal=False)
    with plain.capture() as captured:
        plain.print(screen)
    return "".join(line.rstrip() + "\n" for line in captured.get().splitlines())


def render_findings(findings: Sequence[Finding], format: str = "text", run: Any = None, lang: str = "en") -> str:
    """Return findings as text.

    Args:
        findings: ranked, as `diagnose` returns them.
        format: "text" (one paragraph each), "markdown", or "json" (strict: one object with "run", "steps" and
            "findings").
        run: the run they are of; its path and number of steps go into the JSON.
        lang: "en" or "zh".

    Raises:
        InputError: no such format or language.
    """
    if format not in FORMATS:
        raise InputError(f"format must be one of {', '.join(FORMATS)}, not {format!r}")
    wording.messages(lang)
    listed = [finding if finding.lang == lang else in_language(finding, lang) for finding in findings]
    if format == "json":
        path = getattr(run, "path", None)
        steps = summarize(run).steps if run is not None else None
        data = {
            "run": None if path is None else str(path),
            "steps": steps,
            "findings": [finding.to_json() for finding in listed],
        }
        return json.dumps(data, ensure_ascii=False, allow_nan=False, indent=2)
    if format == "markdown":
        return "\n".join(_markdown(listed, lang))
    return "\n\n".join(str(finding) for finding in listed)


def _screen(run: Any, summary: RunSummary, findings: list[Finding], lang: str) -> Iterator[RenderableType]:
    words = WORDS[lang]
    yield _verdict(summary, findings, lang)
    if summary.steps:
        yield Padding(_facts(summary, lang), (0, 0, 0, 2))
    for finding in findings[:SHOWN]:
        yield from _entry(finding, lang)
    rest = findings[SHOWN:]
    if rest:
        yield Text("  " + words["more"].format(n=len(rest), codes=_codes(rest)))
    command = _next_command(run, findings)
    if command:
        yield Text.assemble((f"{words['next']}: ", "bold"), command)


def _verdict(summary: RunSummary, findings: Sequence[Finding], lang: str) -> Text:
    words = WORDS[lang]
    faults = [finding for finding in findings if finding.severity != "info"]
    prefix = "gradmedic: "
    if not summary.steps and not findings:
        return Text(prefix + words["untrained"], style="bold yellow")
    if faults:
        return Text(
            prefix + words["found"].format(n=len(faults), steps=summary.steps), style=_STYLES[faults[0].severity]
        )
    key = "notes" if findings else "healthy"
    return Text(prefix + words[key].format(n=len(findings), steps=summary.steps), style="bold green")


def _facts(summary: RunSummary, lang: str) -> Table:
    words = WORDS[lang]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    parts = [words["steps"].format(steps=summary.steps)]
    if len(summary.optimizers) > 1:
        parts.append(words["optimizers"].format(n=len(summary.optimizers)))
    if summary.seconds is not None:
        parts.append(_duration(summary.seconds))
    if summary.tensors is not None:
        parts.append(words["tensors"].format(tensors=summary.tensors, parameters=_count(summary.parameters or 0)))
    grid.add_row(words["run"], words["comma"].join(parts))
    if summary.loss_first is not None and summary.loss_last is not None:
        grid.add_row(words["loss"], _arrow(summary.loss_first, summary.loss_last))
    if summary.lr_first is not None and summary.lr_last is not None:
        same = summary.lr_first == summary.lr_last
        rate = wording.number(summary.lr_first) if same else _arrow(summary.lr_first, summary.lr_last)
        grid.add_row(words["lr"], rate)
    if summary.norms:
        norms = _arrow(*summary.norms)
        grid.add_row(words["norm"], f"{norms}{words['open']}{words['norm_phase']}{words['close']}")
    for key, n in (("clipped", summary.clipped), ("skipped", summary.skipped)):
        if n:
            grid.add_row(words[key], words["of_steps"].format(n=n, share=wording.share(n / summary.steps)))
    if summary.overhead is not None:
        grid.add_row(words["overhead"], words["of_time"].format(share=wording.share(summary.overhead)))
    return grid


def _entry(finding: Finding, lang: str) -> Iterator[RenderableType]:
    words = WORDS[lang]
    severity = wording.messages(lang)["severity"][finding.severity]
    style = _STYLES[finding.severity]
    step = words["step"].format(step=finding.step)
    heading = Text.assemble((finding.code, "bold"), " ", (severity, style), f"  {finding.title}", (f"  {step}", "dim"))
    if finding.where:
        heading.append(f"  {words['at']} {wording.names(finding.where, lang)}", style="dim")
    yield heading
    yield Padding(Paragraph(finding.message), (0, 0, 0, 2))
    if finding.remedies:
        remedy = finding.remedies[0]
        body = remedy.text + _action(remedy.action)
        yield Padding(Paragraph(body, label=f"{words['remedy']}: "), (0, 0, 0, 2))
    if finding.folded:
        folded = words["folded"].format(n=len(finding.folded), codes=_codes(finding.folded))
        yield Padding(Paragraph(folded, style="dim"), (0, 0, 0, 2))


def _markdown(findings: Sequence[Finding], lang: str) -> Iterator[str]:
    words = WORDS[lang]
    yield f"# {words['findings']}"
    for finding in findings:
        severity = wording.messages(lang)["severity"][finding.severity]
        step = words["step"].format(step=finding.step)
        yield ""
        yield f"## {finding.code} {finding.title}{words['open']}{severity}{words['comma']}{step}{words['close']}"
        yield ""
        yield finding.message
        if finding.evidence:
            yield ""
            yield f"| {words['evidence']} | {words['value']} | {words['threshold']} |"
            yield "|---|---|---|"
            yield from (_evidence_row(entry) for entry in finding.evidence)
        if finding.remedies:
            yield ""
            yield f"{words['remedies']}:"
            yield ""
            yield from (f"- {remedy.text}{_code(remedy.action)}" for remedy in finding.remedies)
        if finding.folded:
            yield ""
            yield f"{words['consequences']}: {_codes(finding.folded)}"


def _evidence_row(entry: Evidence) -> str:
    unit = f" {entry.unit}" if entry.unit else ""
    return f"| {entry.name} | {_value(entry.value)}{unit} | {_value(entry.threshold)} |"


def _value(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else wording.number(value)


def _next_command(run: Any, findings: Sequence[Finding]) -> str | None:
    if findings:
        return f"gradmedic explain {findings[0].code}"
    path = getattr(run, "path", None)
    return None if path is None else f"gradmedic diagnose {path}"


def _codes(findings: Sequence[Finding]) -> str:
    return ", ".join(dict.fromkeys(finding.code for finding in findings))


def _action(action: str | None) -> str:
    return f" [{action}]" if action else ""


def _code(action: str | None) -> str:
    return f" `{action}`" if action else ""


def _arrow(*values: float) -> str:
    return " → ".join(wording.number(value) for value in values)


def _count(n: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return str(n)


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest:.0f} s" if minutes else f"{rest:.3g} s"
