"""What a figure is drawn from: a run, the folder of one, or a monitor that still watches."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from gradmedic.diagnosis import Finding, diagnose
from gradmedic.diagnosis.engine import in_language
from gradmedic.errors import InputError
from gradmedic.record import Run, open_run
from gradmedic.report.views import Source

#: A `Run`, the path of a run folder, or a `Monitor`.
Drawn: TypeAlias = Any


def run_of(source: Drawn) -> Run:
    """Return the run behind what a figure was given.

    Args:
        source: a `Run`, the path of a run folder, or anything with a `run` that is one (a `Monitor`: what it has
            recorded so far).

    Raises:
        InputError: it is none of these, or the folder holds no run.
    """
    if isinstance(source, Run):
        return source
    if isinstance(source, (str, os.PathLike)):
        return open_run(source)
    held = getattr(source, "run", None)
    if isinstance(held, Run):
        return held
    raise InputError(
        "a figure needs a Run (gm.open_run), the path of a run folder or a Monitor (gm.watch); "
        f"got {type(source).__name__}"
    )


def views_of(source: Drawn) -> Source:
    """Return the tables of that run, read once for all that a figure shows of it."""
    if isinstance(source, Source):
        return source
    run = run_of(source)
    judge = None if isinstance(source, (Run, str, os.PathLike)) else getattr(source, "diagnose", None)
    return Source(run) if judge is None else _Watched(run, judge)


class _Watched(Source):
    """The tables of a monitor's run, whose rules are those that the monitor was given."""

    def __init__(self, run: Run, judge: Callable[[], Sequence[Finding]]) -> None:
        super().__init__(run)
        self.judge = judge


def findings_of(views: Source, lang: str = "en") -> list[Finding]:
    """Return the findings of what a figure shows, in a language: those of the monitor's rules, where it is one's."""
    if not isinstance(views, _Watched):
        return list(diagnose(views.run, lang=lang))
    return [each if each.lang == lang else in_language(each, lang) for each in views.judge()]
