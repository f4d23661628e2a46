"""The commands to type next: what a finding means, and the run as a page."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from gradmedic.diagnosis.finding import Finding
from gradmedic.plain_text import plain

#: What brings the libraries that the page needs.
INSTALL = "pip install 'gradmedic[report]'"


def next_commands(
    run: Any, findings: Sequence[Finding], *, steps: int, lang: str | None = None, first: str = ""
) -> list[str]:
    """Return the commands that a check-up ends with, the first one first.

    Args:
        run: with the folder that it lies in as `path`, or None there for one that is only in memory.
        findings: ranked.
        steps: optimizer steps of the run; without any there is nothing to show.
        lang: the language that they are to name; None leaves it to the environment.
        first: says what to install before a page can be made, with a place for `{install}`; "" says nothing of it.
    """
    option = "" if lang is None else f" --lang {lang}"
    commands = [f"gradmedic explain {findings[0].code}{option}"] if findings else []
    folder = getattr(run, "path", None)
    if steps and folder is not None:
        install = first.format(install=INSTALL) if first and not page_can_be_made() else ""
        commands.append(f"gradmedic report {quoted(folder)}{option}{install}")
    return commands


def page_can_be_made() -> bool:
    """Whether what the page is drawn with is installed; it is not imported for that."""
    try:
        return importlib.util.find_spec("plotly") is not None
    except (ImportError, ValueError):  # ValueError: someone has put a module without a spec into sys.modules
        return "plotly" in sys.modules


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
