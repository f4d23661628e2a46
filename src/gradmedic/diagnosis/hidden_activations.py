"""Which activation functions the hidden layers have, as sampled steps show them: remedies speak of what is there."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gradmedic.diagnosis.module_rows import SampledRow
from gradmedic.frame import Frame

#: Functions that are flat on both sides, so that their slope shrinks what goes back through them, by their usual names.
BOUNDED = {
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Hardsigmoid": "hardsigmoid",
    "Hardtanh": "hardtanh",
    "Softsign": "softsign",
}


class HiddenActivations:
    """Remembers the activation functions of the latest sampled step, gates left out, which are bounded on purpose."""

    def __init__(self) -> None:
        self._kinds: Counter[str] = Counter()

    def look(self, frame: Frame) -> None:
        """Take a frame; most have no rows of modules, and change nothing."""
        rows = [row for row in frame.modules if row.get("what") == "activation" and row.get("leaf")]
        hidden = [row for row in rows if not SampledRow(frame.step, row).get("gate") > 0]
        if hidden:
            self._kinds = Counter(str(row["leaf"]) for row in hidden)

    def params(self) -> dict[str, Any]:
        """Return what a remedy asks for.

        Returns:
            "bounded": usual names of bounded functions where at least half of all are bounded, else (); "others": names
            of all functions where fewer are, else (); "unseen": whether no function was seen (no sampled step yet, a
            compiled model, a function of the author's own).
        """
        bounded = sum(count for kind, count in self._kinds.items() if kind in BOUNDED)
        shrinking = 2 * bounded >= self._kinds.total() if self._kinds else False
        return {
            "bounded": tuple(BOUNDED[kind] for kind, _ in self._kinds.most_common() if kind in BOUNDED) * shrinking,
            "others": tuple(kind for kind, _ in self._kinds.most_common()) * (not shrinking),
            "unseen": not self._kinds,
        }
