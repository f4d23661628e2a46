"""What Lightning finds through entry points: a callback for every trainer, when watching was switched on from outside.

Lightning calls these functions in every `Trainer` and `Fabric` of every program, so that they import nothing and return
nothing unless the program runs under `gradmedic run`, or with `GRADMEDIC_WATCH=FOLDER` in its environment.
"""

from __future__ import annotations

import os
from typing import Any

#: Run folder of a program that is to be watched without a change of it.
VARIABLE = "GRADMEDIC_WATCH"


def callbacks() -> list[Any]:
    """Return the callbacks for a Lightning `Trainer`."""
    return _made("gradmedic.integrations.lightning")


def fabric_callbacks() -> list[Any]:
    """Return the callbacks for a Lightning `Fabric`."""
    return _made("gradmedic.integrations.fabric")


def _made(module: str) -> list[Any]:
    """Return one callback that never raises, or none."""
    folder = os.environ.get(VARIABLE, "").strip()
    from gradmedic.integrations.hosts import run_watches

    if not folder and not run_watches():
        return []
    try:
        import importlib

        from gradmedic.integrations.attendance import Attendance

        made = importlib.import_module(module).GradMedicCallback(folder or None)
        made._attendance = Attendance(folder or None, None, {}, gentle=True)
    except Exception as error:
        from gradmedic.ledger import say

        say(f"trainings of this program are not watched: {error}; they go on")
        return []
    return [made]
