"""Rules kept as they were given, for a rule object holds what it has seen."""

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

    Attributes:
        refused: why one of them cannot be copied; None where all can.
    """

    def __init__(self, rules: Rules) -> None:
        self.refused: str | None = None
        self._kept: Rules = "default"
        try:
            self._kept = deepcopy(rules)
        except Exception as error:  # a rule may hold a lock, a file, a generator; watching needs no copy
            self.refused = f"{type(error).__name__}: {error}"

    def fresh(self) -> Rules:
        """Return them as they were before the first step; what is returned may be used up.

        Raises:
            InputError: one of them cannot be copied.
        """
        if self.refused is not None:
            raise InputError(
                f"judging a record anew needs copies of the rules, and one of them cannot be copied ({self.refused}); "
                "read `monitor.findings`, or pass fresh rules: gm.diagnose(monitor.run, rules=[...])"
            )
        return deepcopy(self._kept)


class RulesForEach:
    """Rules for one engine after another: copies, or, for the first engine, what was given where it has no copy.

    Args:
        rules: "default", or a sequence of codes and fresh rule objects.
    """

    def __init__(self, rules: Rules) -> None:
        self._given: Rules | None = rules
        self._copies = GivenRules(rules)

    def next(self) -> Rules:
        """Return rules that have seen nothing yet.

        Raises:
            InputError: for the second engine, where one of them cannot be copied.
        """
        if self._copies.refused is None:
            return self._copies.fresh()
        if self._given is None:
            raise InputError(
                "this record has the steps of several processes, each of which needs rules of its own, and one of them "
                f"cannot be copied ({self._copies.refused}); give the rule a `__deepcopy__` that returns a fresh one"
            )
        given, self._given = self._given, None
        return given
