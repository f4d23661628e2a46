"""GM504 wrong-sign: what is minimised is the negative of a loss, so that training makes the model worse."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradmedic.diagnosis.bottomless import Bottomless
from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.module_rows import SampledRow
from gradmedic.diagnosis.optimizer_facts import any_group_has
from gradmedic.diagnosis.probed import verdicts
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity

#: Losses that are lowered for certain: those of log-probabilities over several terms may be entropies.
_KINDS = frozenset({"cross_entropy", "nll", "bce", "bce_with_logits", "mse", "l1", "smooth_l1", "huber"})


@dataclass(frozen=True)
class Thresholds:
    """When a sign is certain, and when it has done harm."""

    samples: int = 3
    """Sampled steps in a row whose every loss is maximised: two losses that are fought over take turns."""
    rise: float = 1.1
    """Rise over the first sample from which on the loss is seen to get worse (noise of batches is a few percent)."""
    value: float = 1e-3
    """Distance, as a part of the loss, at which what is minimised counts as its negative."""


@dataclass(slots=True)
class _Seen:
    """What one optimizer's sampled steps have shown."""

    wrong: int = 0
    right: bool = False
    first_step: int = 0
    first_loss: float = math.nan
    maximize: bool = False
    last: SampledRow | None = None


class WrongSign:
    """The sign of every loss call of the sampled steps, line probes, and losses that fall without end."""

    code = "GM504"
    name = "wrong-sign"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._seen: dict[str, _Seen] = {}
        self._bottomless: dict[str, Bottomless] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at every loss's depth, at sampled steps, and at line probes as they come."""
        for event in verdicts(view, "line", "ascends"):
            yield self._probed(view, event)
        grown = None if view.final else self._bottomless.setdefault(view.frame.optimizer, Bottomless()).growth(view)
        if grown is not None and not view.several_optimizers and _trains_a_model(view):
            yield _unbounded(view, grown)
        rows = [] if view.final else [row for row in view.frame.modules if row.get("what") == "loss"]
        if not rows or view.several_optimizers or not _trains_a_model(view):
            return
        seen = self._seen.setdefault(view.frame.optimizer, _Seen())
        self._take(view, seen, [SampledRow(view.frame.step, row) for row in rows])
        if seen.wrong >= self.thresholds.samples and not seen.right:
            yield self._draft(view, seen)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when a loss is minimised after all: two objectives that take turns."""
        if finding.variant == "probe" or finding.optimizer != view.frame.optimizer:
            return True
        if finding.variant == "unbounded":
            return not view.several_optimizers
        return not self._seen[finding.optimizer].right and not view.several_optimizers

    def _take(self, view: View, seen: _Seen, rows: Sequence[SampledRow]) -> None:
        maximize = _maximizes(view)
        signs = [self._sign(view, row, only=len(rows) == 1) * (-1 if maximize else 1) for row in rows]
        if any(sign > 0 and row.leaf in _KINDS for sign, row in zip(signs, rows, strict=True)):
            seen.right = True
        if any(sign >= 0 or row.leaf not in _KINDS for sign, row in zip(signs, rows, strict=True)):
            return
        if not seen.wrong:
            seen.first_step, seen.first_loss, seen.maximize = view.frame.step, rows[0].get("loss"), maximize
        if not seen.wrong or view.frame.step > (seen.last.step if seen.last else -1):
            seen.wrong += 1
        seen.last = rows[0]

    def _sign(self, view: View, row: SampledRow, *, only: bool) -> int:
        """Return a loss's sign: by the graph, or by what came out at the root."""
        sign, root = row.get("sign"), view.frame.loss
        if only and view.frame.micro_batches == 1 and root is not None:
            loss = row.get("loss") * (row.get("count") if row.get("sum_reduction") > 0 else 1.0)
            if loss > 0 and abs(root + loss) < self.thresholds.value * loss:
                return -1
        return 0 if math.isnan(sign) else int(sign)

    def _draft(self, view: View, seen: _Seen) -> Draft:
        assert seen.last is not None
        loss = _value(seen.last, view)
        first = seen.first_loss if math.isfinite(seen.first_loss) else abs(view.loss.first)
        worse = loss > self.thresholds.rise * first or view.loss.recent < -self.thresholds.rise * abs(view.loss.first)
        severity: Severity = "error" if worse else "warning"
        return Draft(
            severity=severity,
            confidence=0.97 if worse else 0.85,
            step=seen.first_step,
            where=(seen.last.module,) if seen.last.module else (),
            evidence=(
                Evidence("loss that is maximised", loss),
                Evidence("loss that is maximised, first sample", first),
                Evidence("what is minimised", view.frame.loss),
            ),
            params={
                "kind": seen.last.leaf,
                "loss": loss,
                "loss_step": seen.last.step,
                "first": first,
                "root": view.frame.loss,
            },
            variant="maximize" if seen.maximize else "",
        )

    def _probed(self, view: View, event: Mapping[str, Any]) -> Draft:
        numbers = event.get("numbers") or {}
        loss, nearest = float(numbers.get("loss", math.nan)), float(numbers.get("loss_at_0.1", math.nan))
        return Draft(
            severity="error",
            confidence=0.9,
            step=int(event.get("step") or 0),
            evidence=(
                Evidence("loss of a batch", loss),
                Evidence("loss of that batch a tenth of a step on", nearest, loss),
            ),
            params={"loss": loss, "nearest": nearest},
            variant="probe",
        )


def _unbounded(view: View, grown: float) -> Draft:
    return Draft(
        severity="warning",
        confidence=0.8,
        step=view.frame.step,
        evidence=(
            Evidence("loss, median of 20 steps", view.loss.recent),
            Evidence("first loss", view.loss.first),
            Evidence("gradient norm over that of the first steps", grown),
        ),
        params={"loss_first": view.loss.first, "loss_recent": view.loss.recent, "growth": grown},
        variant="unbounded",
    )


def _value(row: SampledRow, view: View) -> float:
    loss = row.get("loss")
    if math.isfinite(loss) or view.frame.loss is None:
        return loss
    return -view.frame.loss


def _trains_a_model(view: View) -> bool:
    """Whether the optimizer has weights: an attack on a model raises its loss on purpose, by changing an input."""
    if view.facts is None:
        return False
    return any(fact.kind and fact.optimizer == view.frame.optimizer for fact in view.facts.parameters.values())


def _maximizes(view: View) -> bool:
    return any_group_has(view, "maximize")
