"""GM302 exploding-gradient: gradients grow layer by layer on their way down, or step by step until the run breaks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradmedic.diagnosis.depth import Profile, activation_growth, layers, profile
from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.gated import has_recovered
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """When growth is an explosion."""

    ratio: float = 1e3
    """First over last layer (rules.md; AutoTrainer: 70)."""
    ratio_certain: float = 1e6
    """Beyond this the network is broken at initialisation whatever the loss does meanwhile: gradients that differ by
    six decades over depth leave no learning rate that suits both ends."""
    both_ways: float = 1e3
    """Growth of the activations on their way up, as well: with `ratio` on the way down the two multiply to
    `ratio_certain`, and outputs of that size make a loss that a whole run is spent on undoing."""
    r2: float = 0.8
    layers: int = 5
    z: float = 6.0
    """Robust z of log norm (rules.md)."""
    growth: float = 20.0
    """And this many times the norm's median before: the floor on MAD alone lets z reach 6 at a growth of 1.6."""
    mad_floor: float = 0.05
    """rules.md: floor on MAD, so that flat series do not explode z."""
    early_growth: float = 100.0
    """When fewer than 20 norms are known there is no spread to judge by: growth over the smallest so far."""
    history: int = 200
    recent: int = 3
    pause: int = 10
    """Calm steps between two stretches of growth that are told apart."""


class ExplodingGradient:
    """Two variants: "depth", a property of network and initialisation; "time", a run that diverges."""

    code = "GM302"
    name = "exploding-gradient"
    kind: Kind = "symptom"
    needs = frozenset({"norm"})
    period = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._early: dict[str, tuple[int, Profile, float]] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Measure depth in the first tables and every tenth; look at time whenever the run is harmed."""
        name = view.frame.optimizer
        if name not in self._early and (view.due(self.period) or (view.table and view.history.tables <= 3)):
            self._measure_depth(view)
        if name in self._early:
            yield from self._depth(view)
        elif view.harm.reason in ("diverged", "nonfinite"):
            yield from self._time(view)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when a loss that had diverged has come down again, and falls; depth remains."""
        return finding.variant == "depth" or not has_recovered(finding, view)

    def _measure_depth(self, view: View) -> None:
        limits = self.thresholds
        places, kind = layers(view.layout, limits.layers)
        if not len(places):
            return
        norms = view.tensor_window("norm", 5)
        found = profile(norms, places, view.layout.numel, kind)
        if found is None or found.ratio <= limits.ratio or found.r2 < limits.r2:
            return
        growth, r2 = activation_growth(norms, view.layout, places) if kind == "bias" else (math.nan, 0.0)
        self._early[view.frame.optimizer] = (view.frame.step, found, growth if r2 >= limits.r2 else math.nan)

    def _depth(self, view: View) -> Iterator[Draft]:
        step, found, growth = self._early[view.frame.optimizer]
        both = growth > self.thresholds.both_ways
        if view.harm:
            severity: Severity = "error"
        elif both or found.ratio > self.thresholds.ratio_certain:
            severity = "warning"
        else:
            return
        activations = (Evidence("activation size, last over first layer", growth, self.thresholds.both_ways),)
        where = view.layout.pick(found.places)
        yield Draft(
            severity=severity,
            confidence=min(0.95, 0.5 + 0.45 * found.r2),
            step=0 if step < 3 else step,
            where=where[: max(1, len(where) // 2)],
            evidence=(
                Evidence("gradient rms, first over last layer", found.ratio, self.thresholds.ratio),
                Evidence("factor per layer", found.per_layer),
                Evidence("R2 of the log-linear fit", found.r2, self.thresholds.r2),
                *(activations if both else ()),
            ),
            params={
                **_common(view),
                "ratio": found.ratio,
                "per_layer": found.per_layer,
                "layers": len(where),
                "first": where[0],
                "last": where[-1],
                "growth": growth if both else 1.0,
                "and_up": "@and_activations" if both else "",
            },
            variant="depth",
        )

    def _time(self, view: View) -> Iterator[Draft]:
        limits = self.thresholds
        steps = view.window("step", limits.history)
        norms = np.abs(view.window("grad_norm", limits.history))
        known = np.isfinite(norms) & (norms > 0) & (view.window("skipped", limits.history) == 0)
        steps, norms = steps[known], norms[known]
        if len(norms) < 2:
            return
        onset, base, z = self._onset(np.log(norms))
        if onset is None:
            return
        peak = float(norms[onset:].max())
        yield Draft(
            severity="error",
            confidence=0.85 if view.harm.reason == "diverged" else 0.75,
            step=int(steps[onset]),
            evidence=(
                Evidence("pre-clip gradient norm", peak, float(np.exp(base)) * limits.growth, "L2"),
                Evidence("robust z of the log norm", z, limits.z),
            ),
            params={
                **_common(view),
                "norm": peak,
                "base": float(np.exp(base)),
                "growth": peak / float(np.exp(base)),
                "suggested": float(f"{float(np.exp(base)) * 2:.1g}"),
            },
            variant="time",
        )

    def _onset(self, logs: np.ndarray) -> tuple[int | None, float, float]:
        """Return where growth began, the log norm before it, and the robust z of the last norms."""
        limits = self.thresholds
        before = logs[: -limits.recent]
        if len(before) < 20:
            base, spread, needed = float(logs[: max(1, len(logs) - 1)].min()), 1.0, np.log(limits.early_growth)
            level = float(logs.max())
        else:
            # The quarter before the last: growth that is under way must not raise its own baseline.
            calm = before[: max(20, 3 * len(before) // 4)]
            base = float(np.median(calm))
            spread = 1.4826 * max(limits.mad_floor, float(np.median(np.abs(calm - base))))
            needed, level = np.log(limits.growth), float(np.median(logs[-limits.recent :]))
        z = (level - base) / spread
        if level - base < needed or (len(before) >= 20 and z < limits.z):
            return None, base, z
        rising = np.flatnonzero(logs - base > 0.5 * needed)
        # Gradients that were large long before, and calm since, are another story: the last stretch without a break.
        breaks = np.flatnonzero(np.diff(rising) > limits.pause)
        return int(rising[breaks[-1] + 1 if len(breaks) else 0]), base, z


def _common(view: View) -> dict[str, object]:
    return {"harm": view.harm.phrase, "loss_first": view.loss.first, "loss_recent": view.loss.recent}
