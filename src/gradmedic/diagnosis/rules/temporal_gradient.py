"""GM307 temporal-gradient: a recurrent net's gradients vanish or explode on their way back through time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import still_harmed
from gradmedic.diagnosis.module_rows import LEARNED, RowMemory, SampledRow, Series, no_better_than_constant, recent
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity

#: Points of the time axis in a row, see `probes.recurrent`.
_POINTS = 9


@dataclass(frozen=True)
class Thresholds:
    """rules.md: the gradient of the first step over that of the last, below 1e-4 or above 1e3."""

    vanishing: float = 1e-4
    exploding: float = 1e3
    certain: float = 1e6
    """Growth that no clip makes good, whatever the loss does meanwhile: the direction of the sum is that of the
    earliest steps alone."""
    r2: float = 0.8
    """Of the log-linear fit: a gradient that enters at several times, or a mask, decays in jumps."""
    share: float = 0.95
    """Part of the loss of the best constant prediction from which on nothing is learned."""
    samples: int = 3
    after: int = 100
    """Steps before which a loss at the level of a constant is a slow start."""
    far_above: float = 10.0
    """A loss this many times that of a constant is none."""


@dataclass(frozen=True, slots=True)
class Course:
    """How the gradient goes over time.

    Attributes:
        ratio: first step over the latest one that has a gradient; inf where it overflows on its way.
        per_step: factor from one step to the one before it.
        r2: of the log-linear fit; 1 where it overflows or underflows to zero.
        steps: length of the time axis.
    """

    ratio: float
    per_step: float
    r2: float
    steps: int


def course(row: SampledRow) -> Course | None:
    """Return how the gradient of one sampled step goes over time; None where it was not measured."""
    norms = np.array([row.get(f"time_{point}") for point in range(_POINTS)])
    steps = int(row.get("steps"))
    finite = np.isfinite(norms)
    flowing = np.flatnonzero(finite & (norms > 0))
    if len(flowing) < 2:
        return None
    late = int(flowing[-1])
    if not finite[: late + 1].all():
        lost = (~finite[: late + 1]).any() and bool(finite[late])
        return Course(math.inf, math.inf, 1.0, steps) if lost and row.get("time_0") != 0 else None
    places = flowing / (_POINTS - 1) * (steps - 1)
    logs = np.log(norms[flowing])
    slope, level = np.polyfit(places, logs, 1)
    residual = float(((logs - slope * places - level) ** 2).sum())
    spread = float(((logs - logs.mean()) ** 2).sum())
    # Zero at the early end is what a decay ends in.
    ratio = float(norms[0] / norms[late])
    return Course(ratio, float(np.exp(-slope)), 1 - residual / spread if spread > 0 else 0.0, steps)


class TemporalGradient:
    """Gradients by time step on the sampled steps, with evidence of harm."""

    code = "GM307"
    name = "temporal-gradient"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()
    period = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._rows = RowMemory(["recurrent", "loss", "weights"])

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled steps, every 10 tables where there is a recurrent net, and at the end."""
        sampled = self._rows.take(view)
        if not (sampled or view.due(self.period)):
            return
        judged = [
            (series, found)
            for series in self._rows.series(view, "recurrent")
            if (found := course(series[-1])) is not None
        ]
        exploding = [each for each in judged if each[1].ratio > self.thresholds.exploding]
        if exploding:
            yield from self._exploding(view, exploding)
        vanishing = [each for each in judged if self._vanishes(each[1])]
        if vanishing:
            yield from self._vanishing(view, vanishing)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the loss falls after all, where it rested on that."""
        if finding.optimizer not in ("", view.frame.optimizer) or finding.severity == "info":
            return True
        if finding.params.get("harm") == "@harm_constant" and self._learned(view):
            return False
        return still_harmed(finding, view)

    def _vanishes(self, found: Course) -> bool:
        limits = self.thresholds
        return found.ratio < limits.vanishing and found.r2 >= limits.r2

    def _vanishing(self, view: View, listed: list[tuple[Series, Course]]) -> Iterator[Draft]:
        # A loss that has left, or is NaN, is not what too little gradient does.
        stuck = self._stuck(view, self.thresholds.share, self.thresholds.after)
        if view.harm.reason == "not_falling" or (stuck and not view.harm):
            worst = min(listed, key=lambda each: each[1].ratio)
            yield self._draft(view, worst, listed, "vanishing", "warning", stuck=stuck)

    def _exploding(self, view: View, listed: list[tuple[Series, Course]]) -> Iterator[Draft]:
        limits = self.thresholds
        worst = max(listed, key=lambda each: each[1].ratio)
        stuck = self._stuck(view, limits.far_above, 0) or self._stuck(view, limits.share, limits.after)
        if view.harm.reason in ("diverged", "nonfinite"):
            severity: Severity = "error"
        elif view.harm or stuck or worst[1].ratio > limits.certain:
            severity = "warning"
        else:
            severity = "info"
        yield self._draft(view, worst, listed, "exploding", severity, stuck=stuck)

    def _stuck(self, view: View, share: float, after: int) -> bool:
        return any(
            series[-1].step >= after and no_better_than_constant(series, self.thresholds.samples, share) is not None
            for series in self._rows.series(view, "loss")
        )

    def _learned(self, view: View) -> bool:
        """Whether a loss has fallen well below that of a constant."""
        for series in self._rows.series(view, "loss"):
            losses, constant = recent(series, "loss", 5), recent(series, "baseline", 5)
            if len(losses) >= 3 and constant and np.mean(losses) < LEARNED * np.mean(constant):
                return True
        return False

    def _gain(self, view: View, row: SampledRow) -> float:
        """Return by how much the recurrent weight stretched a state at the start, rms over directions; NaN: unknown.

        That of an orthogonal matrix is what `nn.init.orthogonal_` calls its gain.
        """
        for series in self._rows.series(view, "weights"):
            if (series[0].module, series[0].leaf) == (row.module, row.leaf):
                return series[0].get("rms") * math.sqrt(series[0].get("inputs"))
        return math.nan

    def _draft(
        self,
        view: View,
        worst: tuple[Series, Course],
        listed: list[tuple[Series, Course]],
        variant: str,
        severity: Severity,
        *,
        stuck: bool,
    ) -> Draft:
        limits = self.thresholds
        series, found = worst
        low = variant == "vanishing"
        gain = self._gain(view, series[-1])
        where = tuple(dict.fromkeys(each[-1].module or each[-1].leaf for each, _ in listed))
        return Draft(
            severity=severity,
            confidence=min(0.92, 0.5 + 0.42 * max(0.0, found.r2)) if severity != "info" else 0.4,
            step=_first(series, limits.vanishing if low else limits.exploding, low=low),
            where=where,
            evidence=(
                Evidence(
                    "gradient, first time step over last", found.ratio, limits.vanishing if low else limits.exploding
                ),
                Evidence("factor per time step", found.per_step),
                Evidence("length of the time axis", found.steps, None, "steps"),
            ),
            params={
                "ratio": found.ratio,
                "per_step": found.per_step,
                "length": found.steps,
                "gain": gain,
                "gain_now": "@gain_now" if math.isfinite(gain) else "",
                "harm": "@harm_constant" if stuck and not view.harm else view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
            variant=variant,
            key=variant,
        )


def _first(series: Series, limit: float, *, low: bool) -> int:
    """Return the first sampled step at which the ratio was beyond the limit."""
    for row in series:
        found = course(row)
        if found is not None and (found.ratio < limit if low else found.ratio > limit):
            return row.step
    return series[-1].step
