"""GM502 output-range-mismatch: the last activation cannot put out what the targets are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.view import View
from gradmedic.facts import LossFact
from gradmedic.types import Severity

_REGRESSION = ("mse", "l1", "smooth_l1", "huber")
_RANGES = {
    "Sigmoid": "[0, 1]",
    "Softmax": "[0, 1]",
    "Hardsigmoid": "[0, 1]",
    "Tanh": "[-1, 1]",
    "Relu": "[0, inf)",
    "Softplus": "[0, inf)",
    "Exp": "[0, inf)",
    "LogSoftmax": "(-inf, 0]",
}


@dataclass(frozen=True)
class Thresholds:
    """Share of targets outside the range."""

    warning: float = 0.01
    """rules.md: more than 1 %."""
    error: float = 0.1
    """From here on it is not a few outliers."""


class OutputRangeMismatch:
    """Targets of the first steps, beside what the activation in front of the loss can put out."""

    code = "GM502"
    name = "output-range-mismatch"
    kind: Kind = "invariant"
    needs: frozenset[str] = frozenset()

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._seen = 0

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at loss calls that are new."""
        losses = view.facts.losses if view.facts is not None else []
        fresh, self._seen = losses[self._seen :], len(losses)
        for loss in fresh:
            share = loss.numbers.get("outside_share", 0.0)
            # Masked elements have targets that are never looked at.
            if share <= self.thresholds.warning or loss.weighted:
                continue
            if loss.kind in _REGRESSION and loss.feed in _RANGES:
                yield self._draft(loss, share, "", _RANGES[loss.feed])
            elif loss.kind == "bce_with_logits":
                yield self._draft(loss, share, "binary", "[0, 1]")

    def _draft(self, loss: LossFact, share: float, variant: str, limits: str) -> Draft:
        severity: Severity = "error" if share > self.thresholds.error else "warning"
        return Draft(
            severity=severity,
            confidence=0.95 if severity == "error" else 0.7,
            step=loss.step,
            where=(loss.module,) if loss.module else (),
            evidence=(Evidence("share of targets outside the output's range", share, self.thresholds.warning),),
            params={
                "share": 100 * share,
                "range": limits,
                "activation": loss.feed,
                "low": loss.numbers.get("target_min", math.nan),
                "high": loss.numbers.get("target_max", math.nan),
            },
            variant=variant,
            key=variant,
            optimizer="",
        )
