"""GM405 stale-second-moment: a gradient outgrows Adam's memory of its squares, the step is too long, the loss jumps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gradmedic.diagnosis.bursts import Thresholds as BurstThresholds
from gradmedic.diagnosis.bursts import loss_rise, stood_out
from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.history import SCALAR_STEPS
from gradmedic.diagnosis.optimizer_facts import second_moment_betas
from gradmedic.diagnosis.ring import Floats
from gradmedic.diagnosis.view import View
from gradmedic.facts import Facts


@dataclass(frozen=True)
class Thresholds:
    """Wortsman 2023: loss spikes come 1 to 8 steps after RMS_t > 2.3 in an early layer."""

    rms: float = 2.3
    """Root of the mean of g^2 / v; 1 when the second moment describes the gradients."""
    tables: int = 50
    """Tables before anything is said: early second moments are means over a few steps."""
    elements: int = 16
    """Smaller tensors have no mean to speak of."""
    repeated: int = 2
    """One jump from which the loss comes back is a note: heavy-tailed targets make one now and then in good health."""
    trifling: float = 0.25
    """A jump by less than this part of all that had been learned counts for nothing: losses near zero have them."""
    unlearned: float = 0.5
    """A jump that takes this part of all that had been learned (first loss to the level before) from the median of the
    steps after it is a fault by itself."""
    settling: int = 40
    """Where other data have come with the step (its own loss, measured before its update, stands out), what was learned
    of the former ones says nothing: so many steps later the loss must still be above that of the new data then."""
    loss: BurstThresholds = field(default_factory=BurstThresholds)


@dataclass(frozen=True, slots=True)
class _Event:
    step: int
    place: int
    rms: float


@dataclass
class _State:
    moment: Floats
    weight: Floats
    names: tuple[str, ...]
    last_step: int = -1
    high: bool = False
    waiting: deque[_Event] = field(default_factory=lambda: deque(maxlen=16))


class StaleSecondMoment:
    """Keeps, for each tensor, the mean of squared gradients as the optimizer does, element by element, on average."""

    code = "GM405"
    name = "stale-second-moment"
    kind: Kind = "symptom"
    needs = frozenset({"norm"})

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._states: dict[str, _State] = {}
        self._jumps: dict[str, int] = {}
        self._betas: dict[str, Floats | float | None] = {}
        self._facts: Facts | None = None

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Follow every table; judge what went before once eight steps have passed."""
        if view.table:
            self._follow(view)
        state = self._states.get(view.frame.optimizer)
        while state is not None and state.waiting:
            event = state.waiting[0]
            if view.frame.step < event.step + self.thresholds.loss.after:
                return
            if self._other_data(view, event) and not self._settled(view, event):
                return
            state.waiting.popleft()
            yield from self._judge(view, event)

    def _settled(self, view: View, event: _Event) -> bool:
        return view.final or view.frame.step >= event.step + self.thresholds.settling

    def _other_data(self, view: View, event: _Event) -> bool:
        """Whether the step's own loss already stood out from those before it."""
        at = _place(view, event.step)
        return at is not None and stood_out(view.window("loss", _steps(view)), at, self.thresholds.loss)

    def _follow(self, view: View) -> None:
        if self._facts is not view.facts:
            self._facts, self._betas = view.facts, {}
        name = view.frame.optimizer
        state = self._states.get(name)
        if name not in self._betas or state is None or state.names != view.layout.names:
            self._betas[name] = _shared(second_moment_betas(view))
        beta = self._betas[name]
        if beta is None:
            return
        if state is None or state.names != view.layout.names:
            size = len(view.layout.names)
            state = _State(np.zeros(size), np.zeros(size), view.layout.names)
            self._states[name] = state
        scale = view.frame.clip_scale if math.isfinite(view.frame.clip_scale) else 1.0
        square = np.square(view.tensor_window("norm", 1)[-1] * scale)
        keep = beta ** max(1, view.frame.step - state.last_step)
        state.last_step = view.frame.step
        # In place: this runs at every step.
        if math.isfinite(square.sum()):
            state.moment *= keep
            state.moment += (1 - keep) * square
            state.weight *= keep
            state.weight += 1 - keep
        else:
            known = np.isfinite(square)
            gain = np.broadcast_to(1 - keep, square.shape)[known]
            state.moment[known] += gain * (square[known] - state.moment[known])
            state.weight[known] += gain * (1 - state.weight[known])
        if view.history.tables >= self.thresholds.tables:
            self._compare(view, state, square)

    def _compare(self, view: View, state: _State, square: Floats) -> None:
        """Note a step at which a gradient has outgrown its second moment, and the step before had not seen it."""
        limits = self.thresholds
        outgrown = square * state.weight > limits.rms**2 * state.moment  # False for NaN
        if not outgrown.any():
            state.high = False
            return
        counted = outgrown & (view.layout.numel >= limits.elements)
        ratio = np.divide(
            square * state.weight, state.moment, out=np.zeros(len(square)), where=counted & (state.moment > 0)
        )
        place = int(ratio.argmax())
        if ratio[place] > 0 and not state.high:
            state.waiting.append(_Event(view.frame.step, place, float(ratio[place]) ** 0.5))
        state.high = bool(ratio[place] > 0)

    def _judge(self, view: View, event: _Event) -> Iterator[Draft]:
        limits = self.thresholds
        at = _place(view, event.step)
        if at is None:
            return
        losses = view.window("loss", _steps(view))
        before, after, hurt = loss_rise(losses, at, limits.loss)
        if not hurt or (view.several_optimizers and not view.harm):
            return  # losses of a GAN rise and fall against each other, whatever the steps are
        counts = after - before > limits.trifling * (view.loss.first - before)
        jumps = self._jumps[view.frame.optimizer] = self._jumps.get(view.frame.optimizer, 0) + counts
        grave = counts and (bool(view.harm) or self._unlearned(view, losses, at, before) or jumps >= limits.repeated)
        betas = second_moment_betas(view)
        beta = float(betas[event.place]) if betas is not None else 0.0
        yield Draft(
            severity="warning" if grave else "info",
            confidence=0.7 if view.harm else 0.6,
            step=event.step,
            where=(view.layout.names[event.place],),
            evidence=(
                Evidence("gradient rms / root of the second moment", event.rms, limits.rms),
                Evidence("loss after the spike, highest median of 3 steps", after, before),
                Evidence("decay of the second moment", beta),
            ),
            params={
                "rms": event.rms,
                "loss_before": before,
                "loss_after": after,
                "beta": beta,
                "steps": round(1 / (1 - beta)) if beta < 1 else 0,
                "after": limits.loss.after,
            },
        )

    def _unlearned(self, view: View, losses: Floats, at: int, before: float) -> bool:
        """Whether much of what had been learned is gone for longer than a jump."""
        limits = self.thresholds
        if stood_out(losses, at, limits.loss):
            later = losses[at + 1 : at + 1 + limits.settling]
            return float(np.median(later[len(later) // 2 :])) > (1 + limits.loss.loss_rise) * float(losses[at])
        lasting = float(np.median(losses[at + 1 : at + 1 + limits.loss.after]))
        return lasting - before > limits.unlearned * (view.loss.first - before)


def _shared(betas: Floats | None) -> Floats | float | None:
    """Return decays as one number where all tensors have the same, as nearly always: it is used at every step."""
    if betas is None or not len(betas):
        return None
    # A tensor whose decay is not known keeps nothing, so that no gradient of it has ever outgrown the mean.
    known = np.nan_to_num(betas)
    return float(known[0]) if (known == known[0]).all() else known


def _steps(view: View) -> int:
    return min(SCALAR_STEPS, view.history.steps)


def _place(view: View, step: int) -> int | None:
    """Return the place of a step in the windows of scalars; None where it is no longer remembered."""
    found = np.flatnonzero(view.window("step", _steps(view)) == step)
    return int(found[-1]) if len(found) else None
