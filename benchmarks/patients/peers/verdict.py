"""What a peer says, in our words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.patients.peers.trace import Trace


@dataclass(frozen=True)
class Verdict:
    """One alarm of a peer.

    Attributes:
        rule: its name with the peer.
        codes: our codes that this alarm names; any of them counts as a hit.
        step: first step at which the peer would have said it.
        where: tensors or modules that it names.
    """

    rule: str
    codes: tuple[str, ...]
    step: int
    where: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping; at most 32 places."""
        return {"rule": self.rule, "codes": list(self.codes), "made": self.step, "where": list(self.where[:32])}


@dataclass(frozen=True)
class Peer:
    """A rule pack.

    Attributes:
        name: for the table.
        judge: returns its alarms, the most important one first.
    """

    name: str
    judge: Callable[[Trace], list[Verdict]]


def by_time(verdicts: list[Verdict]) -> list[Verdict]:
    """Return alarms in the order in which they would have been raised; those of one step keep their order."""
    return sorted(verdicts, key=lambda verdict: verdict.step)
