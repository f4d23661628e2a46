"""What a figure is drawn from: a run, the folder of one, or a monitor that still watches."""

from __future__ import annotations

import os
from typing import Any, TypeAlias

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
    return source if isinstance(source, Source) else Source(run_of(source))
