"""GM517 same-batches: all ranks of a job make the same gradient, so that all but one compute for nothing."""

from __future__ import annotations

from collections.abc import Iterator

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.rank_outliers import SAME
from gradmedic.diagnosis.view import View


class SameBatches:
    """What the reader has found in the ranks' gradients before their reduction."""

    code = "GM517"
    name = "same-batches"
    kind: Kind = "symptom"
    needs = frozenset[str]()
    sampled = True

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at what the reader has found in the records of the ranks."""
        for event in view.events:
            if event.get("kind") == "same_gradients":
                yield Draft(
                    severity="warning",
                    confidence=0.9,
                    step=event["step"],
                    evidence=(Evidence("sampled steps with equal gradients", event["samples"], SAME),),
                    params={"step": event["step"], "n": event["samples"], "world": event["world"]},
                )
