"""What is shown when a watched script has ended: one screen, on stderr."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from gradmedic.cli.command import chosen_by_option, say
from gradmedic.plain_text import plain

if TYPE_CHECKING:
    from gradmedic.cli.session import Findings, Session

_WORDS = {
    "en": {
        "no torch": "gradmedic: nothing was trained: {name} never imported torch",
        "nothing": "gradmedic: nothing was trained: {name} made no optimizer step and no backward pass",
        "by hand": "weights are updated by hand, without an optimizer: each outermost backward pass counts as one step",
        "record": "record: {folder}",
    },
    "zh": {
        "no torch": "gradmedic: 没有训练任何模型：{name} 没有导入 torch",
        "nothing": "gradmedic: 没有训练任何模型：{name} 没有优化器步骤，也没有反向传播",
        "by hand": "权重由手动更新，没有使用优化器：每次最外层反向传播算作一步",
        "record": "记录：{folder}",
    },
}


def word(lang: str, key: str, **values: str) -> str:
    """Return one of our own sentences."""
    return _WORDS[lang][key].format(**values)


def show_untrained(session: Session, name: str) -> None:
    """Say that there was nothing to watch."""
    if not session.options.quiet and session.failure is None:
        say(word(session.options.lang, "nothing" if "torch" in sys.modules else "no torch", name=name))


def show(session: Session, run: Any, findings: Findings) -> None:
    """Show the findings, the next command and the run folder."""
    if session.options.quiet:
        return
    from rich.console import Console

    from gradmedic.report.text import render_checkup

    lang = session.options.lang
    render_checkup(run, findings, lang=lang, console=Console(stderr=True), name_lang=chosen_by_option(lang))
    if by_hand(run):
        say(word(lang, "by hand"))
    if session.options.record is not None:
        say(word(lang, "record", folder=plain(shortest(session.options.record))))


def by_hand(run: Any) -> bool:
    """Return whether a run's steps ended with backward passes, since no optimizer made them."""
    facts = [event["facts"] for event in run.events if event.get("kind") == "facts"]
    return any(entry.get("boundary") == "backward" for entry in facts)


def shortest(folder: str) -> str:
    """Return a folder relative to the present one where that is shorter to type."""
    try:
        relative = os.path.relpath(folder)
    except (OSError, ValueError):
        return folder
    return folder if relative.startswith(os.pardir) else relative
