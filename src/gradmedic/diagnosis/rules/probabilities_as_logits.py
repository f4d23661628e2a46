"""GM501 probabilities-as-logits: a loss is given probabilities where it wants logits, or the other way round."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.view import View
from gradmedic.facts import LossFact

#: Operations that put out rates, not their logarithms.
_NOT_NEGATIVE = ("Exp", "Softplus", "Relu")
#: Losses that make log-probabilities of what they are given.
_OF_LOGITS = ("cross_entropy", "soft_cross_entropy")


@dataclass(frozen=True)
class Thresholds:
    """What counts as a distribution, and as a log-probability."""

    unit_rows: float = 0.99
    """Share of rows that are non-negative and sum to 1 within 1e-3 (rules.md)."""
    positive_share: float = 0.01
    """Share of log-probabilities above 0, which no probability has."""


class ProbabilitiesAsLogits:
    """The loss call of the first steps, by what is directly behind its input."""

    code = "GM501"
    name = "probabilities-as-logits"
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
            variant = self._variant(loss)
            if variant is not None:
                yield _draft(loss, variant)

    def _variant(self, loss: LossFact) -> str | None:
        if loss.kind in _OF_LOGITS and loss.feed in ("Softmax", "Sigmoid"):
            return "softmax" if loss.feed == "Softmax" else "bounded"
        if loss.kind == "bce_with_logits" and loss.feed in ("Sigmoid", "Softmax"):
            return "sigmoid"
        if loss.kind == "bce" and loss.feed == "Sigmoid" and loss.inner == "Sigmoid":
            return "twice"
        if loss.kind in ("kl_div", "kl_div_log_target"):
            return self._of_divergence(loss)
        if loss.kind == "poisson_nll":
            return "rate" if loss.feed in _NOT_NEGATIVE else None
        if loss.kind != "nll":
            return None
        if loss.feed == "Softmax" or loss.numbers.get("unit_rows", 0.0) >= self.thresholds.unit_rows:
            return "missing_log"
        return "raw" if loss.numbers.get("positive_share", 0.0) > self.thresholds.positive_share else None

    def _of_divergence(self, loss: LossFact) -> str | None:
        """Judge KLDivLoss, whose form other losses may have: targets that are no distributions are none of it."""
        if loss.numbers.get("target_unit_rows", 0.0) < self.thresholds.unit_rows:
            return None
        if loss.kind == "kl_div_log_target":
            return "log_target"
        if loss.feed in ("Softmax", "Sigmoid"):
            return "divergence"
        return "raw_divergence" if loss.numbers.get("positive_share", 0.0) > self.thresholds.positive_share else None


def _draft(loss: LossFact, variant: str) -> Draft:
    classes = int(loss.numbers.get("classes", 2))
    # Logits between 0 and 1: the best case is 1 for the right class and 0 for all others.
    floor = math.log1p((classes - 1) / math.e) if variant in ("softmax", "bounded") else math.log1p(1 / math.e)
    name, value = "lowest loss that can be reached", floor
    if variant in ("raw", "raw_divergence"):
        name, value = "share of log-probabilities above 0", loss.numbers.get("positive_share", math.nan)
    elif variant in ("divergence", "log_target"):
        name, value = "share of targets that are distributions", loss.numbers["target_unit_rows"]
    elif variant == "rate":
        name, value = "lowest rate that can be reached", 1.0
    return Draft(
        severity="warning" if variant in ("log_target", "rate") else "error",
        confidence=0.97 if loss.feed == "Softmax" or variant in ("sigmoid", "raw") else 0.9,
        step=loss.step,
        where=(loss.module,) if loss.module else (),
        evidence=(Evidence(name, value, 0.0),),
        params={"classes": classes, "floor": floor, "chance": math.log(max(2, classes)), "activation": loss.feed},
        variant=variant,
        key=variant,
        optimizer="",
    )
