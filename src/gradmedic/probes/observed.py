"""Where no torch optimizer steps: the models' own parameters stand for one."""

from __future__ import annotations

import weakref
from typing import Any

from gradmedic.roster import Roster

NAME = "observe"


class ObservedModels:
    """Has `param_groups` as an optimizer has; they hold every parameter of the watched models."""

    def __init__(self, roster: Roster) -> None:
        self._roster = weakref.ref(roster)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group of all watched parameters."""
        roster = self._roster()
        if roster is None:
            return []
        roster.refresh()
        held = [entry.reference() for entry in roster.parameters]
        return [{"params": [parameter for parameter in held if parameter is not None]}]
