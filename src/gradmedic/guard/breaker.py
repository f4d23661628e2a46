"""A circuit breaker: ends a run that is out of control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradmedic.clip.base import BaseTransform, Decision, Halt, Trip
from gradmedic.clip.spec import Spec
from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.base import check_count, check_positive
from gradmedic.errors import InputError
from gradmedic.guard.spikes import Signal, check_signal, read_signal


@dataclass(frozen=True)
class Breaker(BaseTransform):
    """End training when a signal stays above a limit; see `breaker`."""

    limit: float
    signal: Signal
    patience: int
    on_trip: Trip

    may_skip: ClassVar[bool] = True

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The loss, when that is what is watched."""
        return frozenset({"loss"}) if self.signal == "loss" else frozenset()

    def init(self, spec: Spec) -> State:
        """Return a counter."""
        return State({"consecutive": torch.zeros((), dtype=torch.int64, device=spec.device)})

    def update(self, summary: GradientSummary, state: State) -> tuple[Decision, State]:
        """Decide about one step."""
        signal = read_signal(self.signal, summary)
        if signal is None:
            return Decision(), state
        over = ~(signal <= self.limit)  # negated, so that NaN is over
        count = torch.where(over, state.shared["consecutive"] + 1, 0)
        text = f"{self.signal} above {self.limit:g}, or not finite"
        if self.patience > 1:
            text += f", for {self.patience} steps in a row"
        halt = Halt(count >= self.patience, text, self.on_trip)
        return Decision(halts=(halt,)), State({"consecutive": count})

    def settle(self, before: State, after: State, skipped: torch.Tensor) -> State:
        """The counter goes on counting skipped steps."""
        return after


def breaker(limit: float = 1e5, signal: Signal = "grad_norm", patience: int = 1, on_trip: Trip = "halt") -> Breaker:
    """End the run when the norm (or loss) is above a limit, or not finite, for `patience` steps in a row.

    The step that trips it is not made. Where values stay on a device it acts some steps late; none of those is made.

    Args:
        limit: largest value allowed, > 0.
        signal: "grad_norm" (as the transforms before it leave it) or "loss".
        patience: how many steps in a row have to exceed it.
        on_trip: "halt": raise `gradmedic.TrainingHalted`; "stop": close the run folder and end the process with exit
            code 0; or a function, called with the reason, after which training goes on without that step.

    Returns:
        A transform.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> breaker(1e3, patience=3).patience
        3
    """
    if not callable(on_trip) and on_trip not in ("halt", "stop"):
        raise InputError(f'on_trip: expected "halt", "stop" or a function of the reason, got {on_trip!r}')
    check_count(patience, "patience")
    return Breaker(check_positive(limit, "limit"), check_signal(signal), patience, on_trip)
