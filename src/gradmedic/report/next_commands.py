"""The commands to type next: what a finding means, and the run as a page."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from gradmedic.diagnosis.finding import Finding
from gradmedic.plain_text import plain


def next_commands(run: Any, findings: Sequence[Finding], *, steps: int, lang: str | None = None) -> list[str]:
    """Return the commands that a check-up ends with, the first one first.

    Args:
        run: with the folder that it lies in as `path`, or None there for one that is only in memory.
        findings: ranked.
        steps: optimizer steps of the run; without any there is nothing to show.
        lang: the language that they are to name; None leaves it to the environment.
    """
    option = "" if lang is None else f" --lang {lang}"
    commands = [f"gradmedic explain {findings[0].code}{option}"] if findings else []
    folder = getattr(run, "path", None)
    if steps and folder is not None:
        commands.append(f"gradmedic report {quoted(folder)}{option}")
    return commands


def quoted(folder: str | Path) -> str:
    """Return a folder as it is typed: relative where that is shorter, in quotes where the shell needs them."""
    text = os.fspath(folder)
    try:
        relative = os.path.relpath(text)
    except (OSError, ValueError):
        relative = text
    if not relative.startswith(os.pardir) and len(relative) < len(text):
        text = relative
    if text.startswith("-"):
        text = os.path.join(os.curdir, text)
    if text.isprintable():
        return shlex.quote(text)
    # What a terminal acts upon is spelled out as $'…', which bash and zsh read back.
    return "$'" + plain(text.replace("\\", "\\\\").replace("'", "\\'")) + "'"


def command_lines(commands: Sequence[str], label: str) -> list[Text]:
    """Return a line for each command; one longer than the screen is not broken, so that it can be copied."""
    lines = []
    for at, command in enumerate(commands):
        line = Text(no_wrap=True, overflow="ignore")
        line.append(f"{label}: " if not at else " " * (Text(label).cell_len + 2), style="bold")
        lines.append(line.append(command))
    return lines
