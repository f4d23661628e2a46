"""GM204 loss-scale-collapse: the gradient scaler keeps skipping steps; its calibration at the start is only a note."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """Skips that are a fault (rules.md: scale < 1, five in a row, more than 5 % of 200 after the first 50)."""

    calibration_steps: int = 20
    """Steps at the start in which skips are the scaler's calibration, as long as it settles."""
    calibration_skips: int = 25
    """Skips in a row that no sensible initial scale needs: each halves it, and 2^24 / 2^25 is below 1."""
    skips_in_a_row: int = 5
    """After calibration."""
    scale: float = 1.0
    """A scale below this amplifies nothing."""
    share: float = 0.05
    window: int = 200
    settled: int = 50


@dataclass
class _State:
    run: int = 0
    first_of_run: int = 0
    calibration: list[int] = field(default_factory=list)
    initial: float = math.nan
    steps: int = 0


class LossScaleCollapse:
    """Watches the loss scale and the steps that are withheld for it."""

    code = "GM204"
    name = "loss-scale-collapse"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._states: dict[str, _State] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Count every step made under a loss scale."""
        scale = view.frame.loss_scale
        if scale is None or view.final:
            return
        state = self._states.setdefault(view.frame.optimizer, _State(initial=scale))
        limits = self.thresholds
        state.steps += 1
        if view.frame.skipped:
            state.first_of_run = state.first_of_run if state.run else view.frame.step
            state.run += 1
            if state.steps <= limits.calibration_steps:
                state.calibration.append(view.frame.step)
        else:
            if state.run and state.calibration and state.steps <= 2 * limits.calibration_steps:
                yield self._draft(view, state, "info", state.calibration[0], "calibration")
            state.run = 0
        most = limits.calibration_skips if len(state.calibration) == state.run else limits.skips_in_a_row
        beyond = state.steps > limits.calibration_steps
        if state.run >= most or (beyond and state.run >= limits.skips_in_a_row and not self._calibrating(state)):
            yield self._draft(view, state, "error", state.first_of_run, "")
        elif 0 < scale < limits.scale <= state.initial:
            yield self._draft(view, state, "error", view.frame.step, "")
        elif beyond and state.steps >= limits.settled + limits.window and view.history.steps % 10 == 0:
            yield from self._often(view, state)

    def _calibrating(self, state: _State) -> bool:
        """Whether every step so far was skipped: the scale has not come down to where it fits."""
        return state.run == state.steps and state.run < self.thresholds.calibration_skips

    def _often(self, view: View, state: _State) -> Iterator[Draft]:
        skipped = view.window("skipped", self.thresholds.window)
        if skipped.mean() > self.thresholds.share:
            first = int(view.window("step", self.thresholds.window)[int(skipped.argmax())])
            yield self._draft(view, state, "warning", first, "often")

    def _draft(self, view: View, state: _State, severity: Severity, first: int, variant: str) -> Draft:
        skips = int(view.window("skipped", self.thresholds.window).sum())
        return Draft(
            severity=severity,
            confidence=0.9,
            step=first,
            evidence=(
                Evidence("loss scale", view.frame.loss_scale, self.thresholds.scale),
                Evidence("skipped steps", skips, self.thresholds.skips_in_a_row, "steps"),
            ),
            params={"scale": view.frame.loss_scale, "initial": state.initial, "skips": skips, "run": state.run},
            variant=variant,
            key="calibration" if variant == "calibration" else "",
        )
