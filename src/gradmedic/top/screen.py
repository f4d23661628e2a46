"""A moment of a run as the lines of a screen: pure, so that what is drawn can be checked without a terminal."""

from __future__ import annotations

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from gradmedic.diagnosis import wording
from gradmedic.diagnosis.finding import Finding
from gradmedic.plain_text import plain
from gradmedic.report.switched_off import in_words
from gradmedic.report.views.scalars import Scalars
from gradmedic.top.curves import curve_lines
from gradmedic.top.figures import number, seconds, share
from gradmedic.top.follow import Snapshot
from gradmedic.top.glyphs import ASCII, Glyphs, cut_left, cut_right
from gradmedic.top.tensor_lines import heading, tensor_lines
from gradmedic.top.view import View, chosen, clamped
from gradmedic.top.words import WORDS

_STYLES = {"info": "cyan", "warning": "yellow", "error": "red", "critical": "bold red"}
_STATES = {"running": "green", "silent": "yellow", "killed": "bold red", "gone": "bold red", "waiting": "yellow"}
#: Lines that tensors get at least; everything above makes room for them.
_LEAST_ROWS = 6
_RECENT = 32
#: So many parts that failed are told.
_TROUBLES = 2


def screen_lines(snapshot: Snapshot, view: View, width: int, height: int, glyphs: Glyphs, lang: str) -> list[Text]:
    """Return the lines of the screen, each at most `width` cells wide and at most `height` of them.

    Args:
        snapshot: what is known of the run.
        view: what the person has chosen.
        width, height: of the terminal; 80 by 24 holds all of it.
        glyphs: signs that the terminal can show.
        lang: "en" or "zh".
    """
    if snapshot.state == "waiting":
        lines = _waiting(snapshot, lang)
    else:
        lines = [_header(snapshot, view, width, glyphs, lang), *_notices(snapshot, width, glyphs, lang)]
        # Once for the lines of the header, of the tensors' heading and of the keys.
        room = max(0, height - len(lines) - 2 - _LEAST_ROWS)
        lines += _curves(snapshot, room, width, glyphs, lang)
        room = max(1, height - len(lines) - 2 - _LEAST_ROWS)
        lines += _findings(snapshot, min(room, max(4, height // 5)), lang)
        lines += _tensors(snapshot, view, height - len(lines) - 1, width, glyphs, lang)
    lines = lines[: max(0, height - 1)]
    lines += [Text("")] * (height - 1 - len(lines))
    lines.append(_keys(view, glyphs, lang))
    return [_fitted(line, width, glyphs) for line in lines][:height]


def page_of(snapshot: Snapshot, view: View, width: int, height: int, glyphs: Glyphs, lang: str) -> int:
    """Return how many tensors a screen of this size shows at once."""
    above = 1 + len(_notices(snapshot, width, glyphs, lang))
    above += len(_curves(snapshot, max(0, height - 3 - _LEAST_ROWS), width, glyphs, lang))
    room = max(1, height - above - 2 - _LEAST_ROWS)
    above += len(_findings(snapshot, min(room, max(4, height // 5)), lang))
    return max(1, height - above - 2)


def _waiting(snapshot: Snapshot, lang: str) -> list[Text]:
    words = WORDS[lang]
    waiting = words["waiting"].format(path=plain(snapshot.path))
    return [Text("gradmedic", style="bold"), Text(""), Text(waiting, style="yellow"), Text(words["waiting_more"])]


def _header(snapshot: Snapshot, view: View, width: int, glyphs: Glyphs, lang: str) -> Text:
    words = WORDS[lang]
    line = Text(no_wrap=True)
    line.append(cut_left(plain(snapshot.name), max(12, width // 4), glyphs), style="bold")
    if snapshot.others:
        line.append(f" ({words['newest'].format(n=snapshot.others + 1)})", style="dim")
    state = words[snapshot.state].format(seconds=seconds(snapshot.silent))
    if snapshot.state == "ended" and snapshot.reason not in ("", "finished"):
        step = words["step"].format(step=_last_step(snapshot) or 0)
        frame = line.cell_len + cell_len(words["ended_for"].format(reason="")) + cell_len(step) + 4
        reason = cut_right(plain(snapshot.reason), max(24, width - frame), glyphs)
        state = words["ended_for"].format(reason=reason)
    line.append(f"  {state}", style=_STATES.get(snapshot.state, "bold"))
    if view.paused:
        line.append(f"  [{words['paused']}]", style="yellow")
    longest = max(snapshot.scalars.values(), key=lambda each: len(each.steps), default=None)
    if longest is not None and len(longest.steps):
        line.append("  " + words["step"].format(step=int(longest.steps[-1])))
        pace = _pace(longest, lang)
        while pace and line.cell_len + cell_len("  ".join(["", *pace])) > width:
            pace.pop(0)
        line.append("".join(f"  {part}" for part in pace), style="dim")
    return line


def _last_step(snapshot: Snapshot) -> int | None:
    longest = max(snapshot.scalars.values(), key=lambda each: len(each.steps), default=None)
    return int(longest.steps[-1]) if longest is not None and len(longest.steps) else None


def _notices(snapshot: Snapshot, width: int, glyphs: Glyphs, lang: str) -> list[Text]:
    """Return lines on what is beside the run, or happens between its ranks: none of most runs."""
    words, lines = WORDS[lang], []
    longest = max(12, width // 3)
    if snapshot.instead_of:
        name = cut_left(plain(snapshot.instead_of), longest, glyphs)
        lines.append(Text(words["instead_of"].format(name=name), style="yellow", no_wrap=True))
    if snapshot.newer:
        name = cut_left(plain(snapshot.newer), longest, glyphs)
        lines.append(Text(words["newer"].format(name=name), style="yellow", no_wrap=True))
    if snapshot.parted:
        made = snapshot.parted
        shown = sorted({min(made, key=lambda rank: made[rank]), max(made, key=lambda rank: made[rank])})
        ranks = ", ".join(words["rank"].format(rank=rank, steps=made[rank]) for rank in shown)
        lines.append(Text(words["parted"].format(ranks=ranks), style="yellow", no_wrap=True))
    return lines


def _pace(scalars: Scalars, lang: str) -> list[str]:
    """Return steps a second, time of a step and what of it gradmedic took, over the last steps."""
    words = WORDS[lang]
    taken = scalars.columns["step_seconds"][-_RECENT:]
    spent = scalars.columns["overhead_seconds"][-_RECENT:]
    known = np.isfinite(taken) & (taken > 0) & np.isfinite(spent)
    if not known.any():
        return []
    step = float(np.median(taken[known]))
    ours = float(spent[known].sum() / taken[known].sum())
    return [
        words["rate"].format(rate=number(1 / step)),
        words["step_time"].format(seconds=seconds(step), share=share(ours)),
    ]


def _curves(snapshot: Snapshot, room: int, width: int, glyphs: Glyphs, lang: str) -> list[Text]:
    words = WORDS[lang]
    if not snapshot.scalars:
        return [Text(words["nothing_yet"], style="yellow")]
    several = len(snapshot.scalars) > 1
    lines: list[Text] = []
    listed = list(snapshot.scalars.values())
    for at, scalars in enumerate(listed):
        more = curve_lines(scalars, several=several, width=width, glyphs=glyphs, lang=lang)
        if lines and len(lines) + len(more) + (at + 1 < len(listed)) > room - 2:
            lines.append(Text(words["more_optimizers"].format(n=len(listed) - at), style="dim"))
            break
        lines += more
    return lines


def _findings(snapshot: Snapshot, room: int, lang: str) -> list[Text]:
    words = WORDS[lang]
    lines = [
        Text(words["problem"].format(problem=plain(problem)), style="yellow", no_wrap=True)
        for problem in snapshot.problems[:1]
    ]
    told = [in_words(trouble, lang) for trouble in snapshot.troubles]
    lines += [Text(sentence, style="yellow", no_wrap=True) for sentence in told[:_TROUBLES]]
    found = snapshot.findings
    if not found:
        if not snapshot.scalars:
            return lines
        key = "none" if snapshot.state in ("ended", "killed") else "none_yet"
        return [*lines, Text(words[key], style="yellow" if told else "green")]
    shown = found if len(found) <= room - len(lines) else found[: max(1, room - len(lines) - 1)]
    lines += [_finding(finding, lang) for finding in shown]
    rest = found[len(shown) :]
    if rest:
        codes = ", ".join(dict.fromkeys(finding.code for finding in rest))
        lines.append(Text(words["more"].format(n=len(rest), codes=codes), style="dim", no_wrap=True))
    return lines


def _finding(finding: Finding, lang: str) -> Text:
    words = WORDS[lang]
    severity = wording.messages(lang)["severity"][finding.severity]
    line = Text(no_wrap=True)
    line.append(f"{severity} ", style=_STYLES[finding.severity])
    line.append(plain(finding.code), style="bold")
    line.append(f" {plain(finding.title or finding.name)}")
    line.append(f"  {words['step'].format(step=finding.step)}", style="dim")
    if isinstance(rank := finding.params.get("rank"), int):
        line.append(f"  {words['of_rank'].format(rank=rank)}", style="bold")
    if finding.folded:
        line.append(f"  {words['folded'].format(n=len(finding.folded))}", style="dim")
    if finding.where:
        line.append(f"  {words['at']} {plain(wording.places(finding.where, lang))}", style="dim")
    return line


def _tensors(snapshot: Snapshot, view: View, room: int, width: int, glyphs: Glyphs, lang: str) -> list[Text]:
    words = WORDS[lang]
    layers = snapshot.layers
    if not layers.rows:
        return [Text(words["no_tables"], style="dim")] if snapshot.scalars else []
    places = chosen(layers, view)
    if not len(places):
        return [Text(words["no_match"].format(pattern=plain(view.pattern)), style="yellow", no_wrap=True)]
    page = max(1, room - 1)
    first = clamped(view.offset, len(places), page)
    shown = places[first : first + page]
    head = heading(layers, first, len(shown), len(places), width=width, glyphs=glyphs, lang=lang)
    return [head, *tensor_lines(layers, shown, width=width, glyphs=glyphs, lang=lang)]


def _keys(view: View, glyphs: Glyphs, lang: str) -> Text:
    words = WORDS[lang]
    if view.typing is not None:
        return Text(words["typing"].format(typed=plain(view.typing)), style="reverse", no_wrap=True)
    pattern = plain(view.pattern)
    parts = [
        words["quit"],
        words["sort"].format(sort=words[f"by_{view.sort}"]),
        words["filter_is"].format(pattern=cut_right(pattern, 16, glyphs)) if pattern else words["filter"],
        words["resume" if view.paused else "pause"],
        words["scroll"].format(keys=glyphs.up_down),
    ]
    return Text("   ".join(parts), style="dim", no_wrap=True)


def _fitted(line: Text, width: int, glyphs: Glyphs) -> Text:
    """Cut a line to the width, with a sign that says so, and leave no sign that the terminal cannot show."""
    if glyphs is ASCII and not line.plain.isascii():
        line = line.copy()
        line.plain = line.plain.encode("ascii", "replace").decode("ascii")
    if line.cell_len > width:
        line = line.copy()
        line.truncate(max(0, width - len(glyphs.cut)), overflow="crop")
        line.append(glyphs.cut)
    return line
