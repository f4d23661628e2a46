"""The rules that a monitor was given, kept as they were given: a rule object holds what it has seen."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from gradmedic.diagnosis.draft import Rule
from gradmedic.errors import InputError

Rules = str | Sequence[str | Rule]


class GivenRules:
    """Copies of rules, taken before the first step, so that a record can be judged anew by the same ones.

    Args:
        rules: "default", or a sequence of codes and rule objects.
    """

    def __init__(self, rules: Rules) -> None:
        self._refused: str | None = None
        self._kept: Rules = "default"
        try:
            self._kept = deepcopy(rules)
        except Exception as error:  # a rule may hold a lock, a file, a generator; watching needs no copy
            self._refused = f"{type(error).__name__}: {error}"

    def fresh(self) -> Rules:
        """Return them as they were before the first step; what is returned may be used up.

        Raises:
            InputError: one of them cannot be copied.
        """
        if self._refused is not None:
            raise InputError(
                f"judging a record anew needs copies of the rules, and one of them cannot be copied ({self._refused}); "
                "read `monitor.findings`, or pass fresh rules: gm.diagnose(monitor.run, rules=[...])"
            )
        return deepcopy(self._kept)
