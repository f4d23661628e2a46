"""GM110 rank-desync: replicas of one model that should be equal on every rank are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.view import View
from gradmedic.diagnosis.wording import share
from gradmedic.types import Event, Severity


@dataclass(frozen=True)
class Thresholds:
    """When a difference is a fault of the wiring."""

    most: float = 0.9
    """Share of the tensors, or of the steps, from which on all of them are meant. Experts that live on one rank each
    differ by design, and are few."""
    steps: int = 2
    """Steps in common before anything is said."""


class RankDesync:
    """Replicas that are trained apart, from different beginnings, or have drifted."""

    code = "GM110"
    name = "rank-desync"
    kind: Kind = "invariant"
    needs = frozenset({"norm"})
    sampled = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at what the reader has found in the records of the ranks."""
        for event in view.events:
            if event.get("kind") == "ranks" and event["steps"] >= self.thresholds.steps:
                yield self._draft(event)

    def _draft(self, event: Event) -> Draft:
        most = self.thresholds.most
        level: Severity = "error"
        variant = "drift"
        if event["gradients_differ"] >= most and event["share"] >= most:
            variant = "initial" if event["column"] == "weight_norm" and event["step"] == 0 else ""
        elif event["step"] == 0 and event["share"] < most:  # from the beginning, and not all: experts
            variant, level = "some", "info"
        return Draft(
            severity=level,
            confidence=0.9 if variant != "some" else 0.5,
            step=event["step"],
            where=(event["tensor"],),
            evidence=(
                Evidence("norm on this rank", event["value"], event["other"], "L2"),
                Evidence("steps with other gradients", event["gradients_differ"]),
            ),
            params={
                "rank": event["rank"],
                "reference": event["reference"],
                "tensor": event["tensor"],
                "step": event["step"],
                "share": share(event["share"]),
            },
            variant=variant,
            key=str(event["rank"]),
        )
