"""GM108 misplaced-clip: clipping is called where it has no effect, or the wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity

#: Clipping scaled gradients divides them by the loss scale once too often; the other places only lack effect.
_SEVERITY: dict[str, Severity] = {
    "after_step": "warning",
    "before_backward": "warning",
    "before_unscale": "error",
    "mid_accumulation": "warning",
}


@dataclass(frozen=True)
class Thresholds:
    """How often before it is said."""

    calls: int = 3
    """Misplaced calls; one or two may be part of a warm-up. At the end of the run one is enough. Of each kind no more
    than three are reported, so that three stand for any number."""


class MisplacedClip:
    """Clip calls in the wrong place, seen from the order of calls."""

    code = "GM108"
    name = "misplaced-clip"
    kind: Kind = "invariant"
    needs: frozenset[str] = frozenset()

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._seen: dict[tuple[str, str], tuple[int, int, str, float]] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Count misplaced calls by place and optimizer."""
        for event in view.events:
            placement = str(event.get("placement", "ok"))
            if event.get("kind") != "clip_call" or placement not in _SEVERITY:
                continue
            key = (str(event.get("optimizer") or view.frame.optimizer), placement)
            step = int(event.get("step", view.frame.step))
            count, first, _, _ = self._seen.get(key, (0, step, "", 0.0))
            api = str(event.get("api", "clip_grad_norm_"))
            self._seen[key] = (count + 1, first, api, float(event.get("max_norm") or 0.0))
        least = 1 if view.final else self.thresholds.calls
        for (optimizer, placement), (count, first, api, max_norm) in self._seen.items():
            if count >= least:
                yield Draft(
                    severity=_SEVERITY[placement],
                    confidence=0.95,
                    step=first,
                    evidence=(Evidence("misplaced clip calls", count, least, "calls"),),
                    params={
                        "api": api,
                        "max_norm": max_norm,
                        "calls": count,
                        "often": "@calls_some" if count < self.thresholds.calls else "@calls_many",
                    },
                    variant=placement,
                    key=placement,
                    optimizer=optimizer,
                )
