"""GM508 outlier-batch: loss and gradient leave their usual range at a step whose batch is unlike all the others."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.guarded import guarded
from gradmedic.diagnosis.module_rows import RowMemory, SampledRow, Series
from gradmedic.diagnosis.ring import Floats
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """rules.md: robust z above 6 of both the loss and the gradient, and of the batch's own statistics."""

    z: float = 6.0
    loss_z: float = 3.0
    """Enough for the loss where the batch is odd beyond doubt: losses of small batches are noisy."""
    rise: float = 1.3
    """And this many times the median: flat series reach any z."""
    fall: float = 1.5
    """A loss below the median by half of it: a batch that is easy (one token over and over) teaches that it is all
    there is."""
    after: int = 10
    """Steps after it in which a loss that diverges, or NaN, is its doing."""
    baseline: int = 50
    least: int = 5
    """Steps before it that must be known; below `enough` of them, only what is odd beyond doubt counts."""
    enough: int = 10
    samples: int = 3
    """Batches that show what is usual."""
    fewer: float = 5.0
    """Fewer distinct ids by this factor than in any other batch of at least half its size."""
    one_value: float = 0.9
    """Share of one id, or of one class among the targets, that makes a batch degenerate; usually at most half of it."""
    larger: float = 10.0
    """Largest value over the largest of all other batches: heavy tails reach a few times."""
    alike: float = 0.1
    """Part of the loss of an odd batch from which on another step, whose batch was not looked at, went as it did."""
    absurd: float = 1e3
    """The same, beyond what any tail reaches."""


@dataclass(frozen=True, slots=True)
class _Odd:
    """What is unlike the other batches."""

    what: str
    value: float
    usual: float
    certain: bool


class OutlierBatch:
    """The batch of a step that stands out, beside the batches of the other sampled steps."""

    code = "GM508"
    name = "outlier-batch"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    lasting = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["batch", "loss"])
        self._pending: dict[str, Draft] = {}
        self._odd_steps: dict[str, dict[int, Draft]] = {}
        self._like_steps: dict[str, list[int]] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled steps: a loss that stands out makes its step one. What it does to the run shows later.

        At the end the first such batch is named with all that came after it.
        """
        if self._rows.take(view) and not view.final:
            yield from self._look(view)
        known = self._odd_steps.get(view.frame.optimizer)
        if known:
            yield from self._others(view, known)
        pending = self._pending.get(view.frame.optimizer)
        if pending is None:
            return
        if view.frame.step - pending.step > self.thresholds.after:
            del self._pending[view.frame.optimizer]
        elif view.harm.reason in ("diverged", "nonfinite"):
            yield replace(self._pending.pop(view.frame.optimizer), severity="warning")

    def _look(self, view: View) -> Iterator[Draft]:
        limits = self.thresholds
        loss, norm = (self._height(view, column) for column in ("loss", "grad_norm"))
        low = -self._height(view, "loss", below=True)
        if not (norm > limits.z and (loss > limits.loss_z or low < -limits.z)):
            return
        step = view.frame.step
        found: list[_Odd] = []
        for kind in ("batch", "loss"):
            for series in self._rows.series(view, kind):
                if series[-1].step == step:
                    found.extend(self._odd(series, self._odd_steps.get(view.frame.optimizer, {})))
        worst = max(found, key=lambda each: each.certain, default=None)
        if worst is not None and (worst.certain or (loss > limits.z and view.history.steps > limits.enough)):
            draft = self._draft(view, worst, loss if loss > limits.loss_z else low, norm)
            self._odd_steps.setdefault(view.frame.optimizer, {})[step] = draft
            if draft.severity == "info":
                self._pending[view.frame.optimizer] = draft
            yield draft

    def _others(self, view: View, known: Mapping[int, Draft]) -> Iterator[Draft]:
        """Note steps whose batch nobody looked at and that went as an odd one did; at the end name them all."""
        like = self._like_steps.setdefault(view.frame.optimizer, [])
        if view.final:
            broken = view.harm.reason in ("diverged", "nonfinite")  # then what came after is its doing
            yield _with_later(list(known.values()), () if broken else tuple(like))
            return
        loss, step = view.frame.loss, view.frame.step
        first = next(iter(known.values()))
        if step in known or loss is None or len(like) >= self.thresholds.baseline:
            return
        as_high = first.variant == "" and loss > self.thresholds.alike * float(first.params["loss"]) > 0
        if as_high and min(self._height(view, "loss"), self._height(view, "grad_norm")) > self.thresholds.z:
            like.append(step)

    def _height(self, view: View, column: str, *, below: bool = False) -> float:
        """Return how many robust deviations the present value lies above (or below) those before it; NaN: unknown."""
        limits = self.thresholds
        before, now = view.window(column, limits.baseline + 1)[:-1], getattr(view.frame, column)
        before = before[np.isfinite(before)]
        if len(before) < limits.least or now is None:
            return math.nan
        return _robust_height(-before, -now, limits.fall) if below else _robust_height(before, now, limits.rise)

    def _odd(self, series: Series, known: Container[int]) -> Iterator[_Odd]:
        """Hold a batch against the ordinary ones before it: one like an odd one is as odd."""
        limits, row = self.thresholds, series[-1]
        others = [each for each in list(series)[:-1] if each.step < row.step and each.step not in known]
        if len(others) < limits.samples:
            return
        alike = [each for each in others if each.get("count") <= 2 * row.get("count")]
        distinct = _values(alike, "distinct")
        if distinct and row.get("distinct") * limits.fewer < min(distinct):
            yield _Odd("@odd_distinct", row.get("distinct"), min(distinct), certain=True)
        for key, what in (("top_share", "@odd_ids"), ("label_share", "@odd_labels")):
            # The rows of losses have a share of the class predicted most often under the same name.
            usual = _values(alike, key) if key == "label_share" or row.leaf == "ids" else []
            if usual and row.get(key) >= limits.one_value and max(usual) <= limits.one_value / 2:
                yield _Odd(what, row.get(key), max(usual), certain=True)
        for key, what in (("max_abs", "@odd_values"), ("target_abs", "@odd_targets")):
            usual = [_largest(each, key) for each in others]
            usual = [value for value in usual if math.isfinite(value)]
            value = _largest(row, key)
            if usual and max(usual) > 0 and value > limits.larger * max(usual):
                yield _Odd(what, value, max(usual), certain=value > limits.absurd * max(usual))

    def _draft(self, view: View, odd: _Odd, loss: float, norm: float) -> Draft:
        harmed = view.harm.reason in ("diverged", "nonfinite")
        severity: Severity = "warning" if odd.certain or harmed else "info"
        limits = self.thresholds
        before = view.window("loss", limits.baseline + 1)[:-1]
        usual_loss = float(np.nanmedian(before))
        return Draft(
            severity=severity,
            confidence=0.85 if odd.certain else 0.6,
            step=view.frame.step,
            evidence=(
                Evidence("statistic of the batch, and in other batches", odd.value, odd.usual),
                Evidence("robust z of the loss", loss, limits.loss_z if odd.certain else limits.z),
                Evidence("robust z of the log norm", norm, limits.z),
                Evidence("loss, of one step", view.frame.loss, usual_loss),
            ),
            params={
                "guarded": guarded(view.frame),
                "odd": odd.what,
                "odd_value": odd.value,
                "odd_usual": odd.usual,
                "loss": view.frame.loss,
                "usual_loss": usual_loss,
                "later": "",
                "like": "",
            },
            variant="" if loss > 0 else "easy",
        )


def _with_later(drafts: list[Draft], like: Sequence[int]) -> Draft:
    """Return the draft of the first odd batch, with the steps of the others."""
    first, *later = drafts
    params = dict(first.params)
    for key, steps in (("later", [each.step for each in later]), ("like", list(like))):
        if steps:
            params |= {key: f"@odd_{key}", f"{key}_steps": tuple(map(str, steps)), f"{key}_n": len(steps)}
    return replace(first, params=params)


def _robust_height(before: Floats, now: float, rise: float) -> float:
    if not math.isfinite(now):
        return math.inf
    middle = float(np.median(before))
    spread = 1.4826 * max(float(np.median(np.abs(before - middle))), 1e-3 * abs(middle))
    if now - middle < (rise - 1) * abs(middle) or spread == 0:
        return 0.0
    return (now - middle) / spread


def _values(rows: Sequence[SampledRow], key: str) -> list[float]:
    return [value for row in rows if math.isfinite(value := row.get(key))]


def _largest(row: SampledRow, key: str) -> float:
    """Return the largest magnitude of a batch's values or targets."""
    if key == "target_abs":
        return max(abs(row.get("target_min")), abs(row.get("target_max")))
    return row.get(key)
