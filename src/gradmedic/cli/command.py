"""What all commands share: their protocol, exit codes, common options, and where own words go."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterable
from typing import Any, Protocol

from gradmedic.types import SEVERITIES, Severity

FINE, FOUND, USAGE_ERROR = 0, 1, 2
INTERRUPTED = 130

LANGUAGES = ("en", "zh")

#: Other names of severities, as check-ups print them.
_ALSO: dict[Severity, str] = {"info": "note"}
_NAMED = ", ".join(f"{each} (or {_ALSO[each]})" if each in _ALSO else each for each in SEVERITIES)


class Command(Protocol):
    """One command: `prepare_parser` adds its options, `run` does it and returns the exit code.

    `summary` is one line for the list of commands, `example` ends the command's help.
    """

    summary: str
    example: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace, parser: argparse.ArgumentParser) -> int: ...


def default_language() -> str:
    """Return "zh" or "en": GRADMEDIC_LANG decides, then the locale as POSIX ranks its variables."""
    for variable in ("GRADMEDIC_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(variable, "")
        if value:
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


def chosen_by_option(lang: str) -> bool:
    """Whether only `--lang` can have chosen a language, so that the next command would not choose it by itself."""
    return lang != default_language()


def add_language(parser: argparse.ArgumentParser) -> None:
    """Add `--lang`."""
    parser.add_argument(
        "--lang",
        choices=LANGUAGES,
        default=default_language(),
        help="language of the findings (default: GRADMEDIC_LANG, else the locale)",
    )


def add_fail_on(parser: argparse.ArgumentParser) -> None:
    """Add `--fail-on`."""
    parser.add_argument(
        "--fail-on",
        type=severity_named,
        metavar="SEVERITY",
        help=f"exit with code 1 when a finding is at least this severe: {_NAMED} (default: never)",
    )


def severity_named(text: str) -> Severity:
    """Return a severity by its name, or by the one that a check-up prints for the mildest."""
    for severity in SEVERITIES:
        if text == severity or text == _ALSO.get(severity):
            return severity
    raise argparse.ArgumentTypeError(f"expected one of {_NAMED}, got {text!r}")


def reaches(findings: Iterable[Any], severity: str | None) -> bool:
    """Return whether any finding, or what is folded under it, is at least as severe; never when `severity` is None.

    A cause may be a mere warning, and its consequence critical.
    """
    if severity is None:
        return False
    bar = SEVERITIES.index(severity)
    return any(SEVERITIES.index(each.severity) >= bar for finding in findings for each in (finding, *finding.folded))


def say(text: str) -> None:
    """Write one line of ours to stderr; a script that has closed its stderr is no reason to fail."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(text, file=sys.stderr, flush=True)


def complain(text: str) -> None:
    """Write one error line of ours to stderr."""
    say(f"gradmedic: {text}")
