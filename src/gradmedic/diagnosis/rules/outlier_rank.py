"""GM516 outlier-rank: one rank's gradient is out of all proportion to those of the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.rank_outliers import HUGE, LARGE, SMALL
from gradmedic.diagnosis.view import View
from gradmedic.types import Event

_THRESHOLDS = {"large": LARGE, "once": HUGE, "small": SMALL}


@dataclass(frozen=True)
class Thresholds:
    """What the larger gradient comes from; when a rank is out of proportion is said in `rank_outliers`."""

    inputs: float = 3.0
    """Ratio of the inputs' rms to that of other ranks, from which on they are to blame."""


class OutlierRank:
    """What the reader has found in the ranks' gradients before their reduction."""

    code = "GM516"
    name = "outlier-rank"
    kind: Kind = "symptom"
    needs = frozenset[str]()
    sampled = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at what the reader has found in the records of the ranks."""
        for event in view.events:
            if event.get("kind") == "rank_gradient":
                yield self._draft(event)

    def _draft(self, event: Event) -> Draft:
        how, inputs = event["how"], event["inputs"]
        blamed = how == "large" and inputs is not None and inputs >= self.thresholds.inputs
        ratio = float(f"{event['times']:.3g}") if event["times"] else 0.0
        evidence = [
            Evidence("local gradient norm over the median of the other ranks", event["times"], _THRESHOLDS[how]),
            Evidence("local gradient norm", event["value"], None, "L2"),
            Evidence("median of the other ranks", event["median"], None, "L2"),
        ]
        if inputs is not None:
            evidence.append(Evidence("inputs' rms over that of the other ranks", inputs, self.thresholds.inputs))
        if event["losses"] is not None:
            evidence.append(Evidence("loss over that of the other ranks", event["losses"]))
        if event["fingerprint"] is not None:
            evidence.append(Evidence("fingerprint of its batch", event["fingerprint"]))
        return Draft(
            severity="info" if how == "once" else "warning",
            confidence=0.5 if how == "once" else 0.85,
            step=event["step"],
            where=(event["tensor"],),
            evidence=tuple(evidence),
            params={
                "rank": event["rank"],
                "times": ratio,
                "value": event["value"],
                "median": event["median"],
                "tensor": event["tensor"],
                "step": event["step"],
                "n": event["samples"],
                "inputs": inputs,
            },
            variant="inputs" if blamed else "" if how == "large" else how,
            key=str(event["rank"]),
        )
