"""What could not be judged of a run, because what it needs was not seen: absence of a finding is then no good news."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradmedic.facts import Facts
from gradmedic.frame import Frame

#: Rules that rest on sampled module and graph probes.
MODULE_RULES = (
    "GM109",
    "GM112",
    "GM113",
    "GM303",
    "GM304",
    "GM305",
    "GM307",
    "GM308",
    "GM309",
    "GM310",
    "GM311",
    "GM312",
    "GM504",
    "GM507",
    "GM508",
    "GM509",
    "GM510",
    "GM511",
    "GM513",
    "GM514",
    "GM515",
)
#: Rules that rest on the loss calls of the first steps.
LOSS_CALL_RULES = ("GM501", "GM502", "GM503")
#: Symptoms: without a loss, nothing but NaN tells that a run suffers.
LOSS_RULES = ("GM301", "GM302", "GM401", "GM402", "GM403", "GM407", "GM411", "GM505")
#: Rules that hold the records of several ranks against each other.
RANK_RULES = ("GM110", "GM516", "GM517")
#: Rules that rest on tensor tables.
TABLE_RULES = ("GM101", "GM106", "GM205", "GM301", "GM302", "GM401", "GM402", "GM409")


@dataclass(frozen=True, slots=True)
class NotJudged:
    """Rules that said nothing because they saw nothing.

    Attributes:
        reason: "no_steps", "no_modules", "no_loss_calls", "no_loss", "no_tables", "not_visible" or
            "no_other_ranks".
        codes: of these rules.
    """

    reason: str
    codes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {"reason": self.reason, "codes": list(self.codes)}


@dataclass(slots=True)
class Coverage:
    """Watches the frames of a run go by and knows in the end what was never seen.

    Example:
        >>> coverage = Coverage()
        >>> coverage.add(Frame(step=0, optimizer="SGD", loss=1.0, grad_norm=1.0))
        >>> [entry.reason for entry in coverage.not_judged(None)]
        ['no_tables', 'no_modules', 'no_loss_calls']
    """

    steps: int = 0
    losses: int = 0
    tables: int = 0
    modules: int = 0
    graphs: int = 0

    def add(self, frame: Frame) -> None:
        """Take one frame."""
        self.steps += 1
        self.losses += frame.loss is not None
        self.tables += len(frame.tensors) > 0
        self.modules += len(frame.modules) > 0
        self.graphs += any(row.get("what") == "loss" for row in frame.modules)

    def not_judged(self, facts: Facts | None, *, alone: bool = False) -> list[NotJudged]:
        """Return what could not be judged, the most sweeping first; empty when everything could.

        Args:
            facts: the last ones of the run.
            alone: whether this is one of several ranks, and the others have left no record; see `one_of_several`.
        """
        if not self.steps:
            return [NotJudged("no_steps", ())]
        found: list[NotJudged] = []
        if alone:
            found.append(NotJudged("no_other_ranks", RANK_RULES))
        if facts is not None and facts.engine:
            found.append(NotJudged("not_visible", TABLE_RULES))
        elif not self.tables:
            found.append(NotJudged("no_tables", TABLE_RULES))
        if not self.losses:
            found.append(NotJudged("no_loss", LOSS_RULES))
        if not self.modules:
            found.append(NotJudged("no_modules", MODULE_RULES))
        if not self.graphs and (facts is None or not facts.losses):
            found.append(NotJudged("no_loss_calls", LOSS_CALL_RULES))
        return found
