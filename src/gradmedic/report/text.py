"""The check-up in the terminal, and findings as text, markdown or JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gradmedic.diagnosis import wording
from gradmedic.diagnosis.actions import Action, expression
from gradmedic.diagnosis.engine import in_language
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.ranks import rank_states
from gradmedic.diagnosis.wording import counted
from gradmedic.errors import InputError
from gradmedic.plain_text import abridged
from gradmedic.report.explain import explain as explain
from gradmedic.report.facts_table import facts_table
from gradmedic.report.next_commands import command_lines, next_commands
from gradmedic.report.paragraph import Paragraph
from gradmedic.report.probe_line import probe_line
from gradmedic.report.run_ending import ending_of, ending_sentence, ending_text
from gradmedic.report.run_summary import RunSummary, gradients_json, noise_json, summarize
from gradmedic.report.switched_off import in_words, troubles_of
from gradmedic.report.text_words import WORDS

__all__ = ["explain", "render_checkup", "render_findings"]

FORMATS: tuple[str, ...] = ("text", "markdown", "json")
#: A screen, less a line for the prompt and one for what a command says besides.
LINES = 22
#: How many findings are shown in full, and of each how many consequences by a line of their own: the first pair that
#: fits the screen. The others are named.
FULLNESS = ((3, 99), (3, 3), (2, 3), (1, 3), (1, 1), (1, 0))
_STYLES = {"info": "cyan", "warning": "yellow", "error": "red", "critical": "bold red"}


def render_checkup(
    run: Any,
    findings: Sequence[Finding],
    *,
    lang: str = "en",
    console: Console | None = None,
    width: int | None = None,
    name_lang: bool = False,
) -> str | None:
    """Show a run and its findings on one screen.

    Args:
        run: anything with `meta`, `events` and `frames()`.
        findings: ranked, as `diagnose` returns them.
        lang: "en" or "zh".
        console: where to print; None returns the text, without colour.
        width: columns; by default the console's, or 80.
        name_lang: whether the commands to type next name the language, since they would not choose it by themselves.

    Returns:
        None when printed to a console, else the text.
    """
    wording.messages(lang)
    listed = [finding if finding.lang == lang else in_language(finding, lang) for finding in findings]
    columns = width or (console.width if console is not None else 80)
    screen = _fitting(run, summarize(run), listed, lang, columns, name_lang=name_lang)
    if console is not None:
        console.print(screen, width=width, crop=False)
        return None
    return "".join(f"{line}\n" for line in _lines(screen, columns))


def render_findings(findings: Sequence[Finding], format: str = "text", run: Any = None, lang: str = "en") -> str:
    """Return findings as text.

    Args:
        findings: ranked, as `diagnose` returns them.
        format: "text" (one paragraph each), "markdown", or "json" (strict: one object with "run", "steps",
            "ended", "findings", "not_judged" and "gradients").
        run: the run they are of; its path and number of steps go into the JSON, and where something cut it short,
            all formats say so.
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
        summary = summarize(run) if run is not None else None
        data = {
            "run": None if path is None else str(path),
            "steps": None if summary is None else summary.steps,
            "ended": None if summary is None or summary.ending is None else summary.ending.to_json(),
            "findings": [finding.to_json() for finding in listed],
            "not_judged": [entry.to_json() for entry in (summary.not_judged if summary else ())],
            "gradients": [gradients_json(series) for series in (summary.series if summary else ())],
            "ranks": [state.to_json() for state in (summary.ranks if summary else ())],
            "noise_scale": noise_json(summary.noise) if summary else None,
            "problems": [*summary.problems, *(in_words(each, lang) for each in summary.troubles)] if summary else [],
        }
        return json.dumps(data, ensure_ascii=False, allow_nan=False, indent=2)
    remarks = [] if run is None else _remarks(run, lang)
    if format == "markdown":
        return "\n".join(_markdown(listed, remarks, lang))
    return "\n\n".join([*(_paragraphs(finding, lang) for finding in listed), *remarks])


def _remarks(run: Any, lang: str) -> list[str]:
    """Return what is to be said beside the findings: what cut the run short, and what was switched off."""
    troubles = [in_words(trouble, lang) for trouble in troubles_of(getattr(run, "events", ()))]
    ended = ending_sentence(ending_of(run, rank_states(run)), lang)
    said = [WORDS[lang]["sentence"].format(clause=trouble) for trouble in troubles]
    return [ended, *said] if ended else said


def _fitting(
    run: Any, summary: RunSummary, findings: list[Finding], lang: str, width: int, *, name_lang: bool
) -> Group:
    """Return the fullest screen that is no longer than a screen, or the shortest one there is."""
    for fullness in FULLNESS:
        screen = Group(*_screen(run, summary, findings, lang, fullness, name_lang=name_lang))
        if len(_lines(screen, width)) <= LINES:
            break
    return screen


def _lines(screen: RenderableType, width: int) -> list[str]:
    """Return what is shown as plain lines."""
    text = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with text.capture() as captured:
        text.print(screen, crop=False)
    return [line.rstrip() for line in captured.get().splitlines()]


def _screen(
    run: Any, summary: RunSummary, findings: list[Finding], lang: str, fullness: tuple[int, int], *, name_lang: bool
) -> Iterator[RenderableType]:
    words = WORDS[lang]
    yield _verdict(summary, findings, lang)
    if summary.steps:
        yield Padding(facts_table(summary, lang), (0, 0, 0, 2))
    if probed := probe_line(getattr(run, "events", ()), lang):
        yield Padding(Paragraph(probed), (0, 0, 0, 2))
    several = len(summary.optimizers) > 1
    shown, consequences = fullness
    for finding in findings[:shown]:
        yield from _entry(finding, lang, consequences, several=several)
    rest = findings[shown:]
    if rest:
        yield Text("  " + words["more"].format(n=len(rest), codes=_codes(rest)))
    commands = next_commands(run, findings, steps=summary.steps, lang=lang if name_lang else None, first=words["first"])
    yield from command_lines(commands, words["next"])


def _verdict(summary: RunSummary, findings: Sequence[Finding], lang: str) -> Text:
    words = WORDS[lang]
    faults = [finding for finding in findings if finding.severity != "info"]
    prefix = "gradmedic: "
    if not summary.steps and not findings:
        return Text(prefix + words["untrained"], style="bold yellow")
    steps = counted(summary.steps)
    early = summary.ending if summary.ending is not None and summary.ending.early else None
    ending = "" if early is None else ending_text(early, lang)
    if faults:
        found = words["found"].format(n=counted(len(faults)), steps=steps)
        if ending:
            found = words["found_until"].format(found=found, ending=ending)
        return Text(prefix + found, style=_STYLES[faults[0].severity])
    key = "notes" if findings else "healthy"
    if ending:
        until = words[f"{key}_until"].format(n=counted(len(findings)), ending=ending)
        return Text(prefix + until, style="bold yellow")
    alone = any(entry.reason == "no_other_ranks" for entry in summary.not_judged)
    whole = not any(trouble.off for trouble in summary.troubles)
    seen = next((state.rank for state in summary.ranks if state.steps), 0)
    kind = f"{key}_but" if not whole else f"{key}_alone" if alone else key
    verdict = words[kind].format(n=counted(len(findings)), steps=steps, rank=seen)
    return Text(prefix + verdict, style="bold green" if kind == key else "bold yellow")


def _entry(finding: Finding, lang: str, consequences: int, *, several: bool) -> Iterator[RenderableType]:
    words = WORDS[lang]
    severity = wording.messages(lang)["severity"][finding.severity]
    style = _STYLES[finding.severity]
    step = words["step"].format(step=finding.step)
    title = f"  {finding.title}{_whose(finding, lang) if several else ''}"
    heading = Text.assemble((finding.code, "bold"), " ", (severity, style), title, (f"  {step}", "dim"))
    if finding.where:
        heading.append(f"  {words['at']} {wording.places(finding.where, lang)}", style="dim")
    yield heading
    yield Padding(Paragraph(finding.message), (0, 0, 0, 2))
    if finding.remedies:
        remedy = finding.remedies[0]
        body = remedy.text + _action(remedy.action)
        yield Padding(Paragraph(body, label=f"{words['remedy']}: "), (0, 0, 0, 2))
    # A line that counts the last one takes the room of that one.
    shown = consequences if len(finding.folded) > consequences + 1 else consequences + 1
    for entry in finding.folded[:shown]:
        yield Padding(Paragraph(_follows(entry, lang, several=several), style="dim"), (0, 0, 0, 2))
    if rest := finding.folded[shown:]:
        more = words["folded_more"].format(n=len(rest), codes=_codes(rest))
        yield Padding(Paragraph(more, style="dim"), (0, 0, 0, 2))


def _consequence(finding: Finding, lang: str, *, several: bool = False) -> str:
    """Return what is said of a finding that is folded under its cause."""
    words = WORDS[lang]
    place = words["place"].format(where=wording.places(finding.where, lang)) if finding.where else ""
    return words["consequence"].format(
        code=finding.code,
        title=finding.title + (_whose(finding, lang) if several else ""),
        place=place,
        step=words["step"].format(step=finding.step),
    )


def _follows(finding: Finding, lang: str, *, several: bool = False) -> str:
    return WORDS[lang]["folded"].format(what=_consequence(finding, lang, several=several))


def _whose(finding: Finding, lang: str) -> str:
    words = WORDS[lang]
    return f"{words['open']}{abridged(finding.optimizer)}{words['close']}" if finding.optimizer else ""


def _paragraphs(finding: Finding, lang: str) -> str:
    return "\n".join([str(finding), *(f"  {_follows(entry, lang)}" for entry in finding.folded)])


def _markdown(findings: Sequence[Finding], remarks: Sequence[str], lang: str) -> Iterator[str]:
    words = WORDS[lang]
    yield f"# {words['findings']}"
    for remark in remarks:
        yield ""
        yield remark
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
            yield from (_evidence_row(entry, lang) for entry in finding.evidence)
        if finding.remedies:
            yield ""
            yield f"{words['remedies']}:"
            yield ""
            yield from (f"- {remedy.text}{_code(remedy.action)}" for remedy in finding.remedies)
        if finding.folded:
            yield ""
            yield f"{words['consequences']}:"
            yield ""
            yield from (f"- {_consequence(entry, lang)}" for entry in finding.folded)


def _evidence_row(entry: Evidence, lang: str) -> str:
    unit = f" {wording.unit(entry.unit, entry.value, lang)}" if entry.unit else ""
    return f"| {wording.label(entry.name, lang)} | {_value(entry.value)}{unit} | {_value(entry.threshold)} |"


def _value(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else wording.number(value)


def _codes(findings: Sequence[Finding]) -> str:
    return ", ".join(dict.fromkeys(finding.code for finding in findings))


def _action(action: Action | None) -> str:
    call = expression(action)
    return f" [{call}]" if call else ""


def _code(action: Action | None) -> str:
    call = expression(action)
    return f" `{call}`" if call else ""
