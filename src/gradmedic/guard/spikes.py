"""Skipping steps whose gradient norm or loss stands far out of what it was lately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch

from gradmedic.clip.base import BaseTransform, Decision, Reason
from gradmedic.clip.spec import Spec
from gradmedic.clip.state import State, select
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.base import check_count, check_positive
from gradmedic.clip.thresholds.history import new_ring, push
from gradmedic.clip.thresholds.quantiles import check_window
from gradmedic.clip.thresholds.zscore import deviations
from gradmedic.errors import InputError
from gradmedic.stats.transfer import moved

Signal = Literal["grad_norm", "loss"]


@dataclass(frozen=True)
class SkipSpikes(BaseTransform):
    """Skip outliers; see `skip_spikes`."""

    signal: Signal
    z: float
    window: int
    min_samples: int
    max_consecutive: int
    robust: bool = True

    may_skip: ClassVar[bool] = True

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The loss, when that is what is watched."""
        return frozenset({"loss"}) if self.signal == "loss" else frozenset()

    def init(self, spec: Spec) -> State:
        """Return an empty history."""
        count = torch.zeros((), dtype=torch.int64, device=spec.device)
        return State({"consecutive": count}, parts={"history": State(new_ring(self.window, (), spec.device))})

    def update(self, summary: GradientSummary, state: State) -> tuple[Decision, State]:
        """Decide about one step."""
        signal = read_signal(self.signal, summary)
        if signal is None:
            return Decision(), state
        ring = state.parts["history"].shared
        middle, spread = deviations(ring, robust=self.robust)
        ready = ring["count"] >= self.min_samples
        high = ready & ~(signal <= middle + self.z * spread)  # negated, so that NaN is high
        count = state.shared["consecutive"]
        # After so many in a row, what looked like a spike is the new level: the history begins anew from it.
        accept = high & (count >= self.max_consecutive) & torch.isfinite(signal)
        skip = high & ~accept
        empty = new_ring(self.window, (), signal.device)
        base = {key: torch.where(accept, empty[key], value) for key, value in ring.items()}
        counts = torch.isfinite(signal) & ~skip
        if self.signal == "grad_norm":  # all gradients 0, as of a masked loss: no level that others could rise above
            counts = counts & (signal > 0)
        history = push(base, signal, counts)
        after = State({"consecutive": torch.where(skip, count + 1, 0)}, parts={"history": State(history)})
        text = f"{self.signal} is a spike: more than {self.z:g} deviations above the last {self.window} steps"
        return Decision(skips=(Reason(skip, text),)), after

    def settle(self, before: State, after: State, skipped: torch.Tensor) -> State:
        """The counter goes on; the history does not hold a step that another guard has skipped."""
        return State(after.shared, parts={"history": select(skipped, before.parts["history"], after.parts["history"])})


def read_signal(signal: Signal, summary: GradientSummary) -> torch.Tensor | None:
    """Return the signal, 0-d float64: NaN where the gradients are not finite, None where the loss is not known."""
    if signal == "loss":
        return None if summary.loss is None else moved(summary.loss, summary.norm.device, torch.float64)
    total = summary.total
    return torch.where(summary.finite, total, torch.full_like(total, torch.nan))


def check_signal(signal: Any) -> Signal:
    """Return the signal's name; raises InputError for another one."""
    if signal not in get_args(Signal):
        raise InputError(f"signal: expected one of {', '.join(get_args(Signal))}, got {signal!r}")
    return signal  # type: ignore[no-any-return]


def skip_spikes(
    signal: Signal = "grad_norm",
    z: float = 6.0,
    window: int = 128,
    min_samples: int | None = None,
    *,
    max_consecutive: int = 10,
    robust: bool = True,
) -> SkipSpikes:
    """Skip steps whose norm (or loss) lies more than `z` deviations above the median of the last steps.

    Median and median absolute deviation (times 1.4826) make the baseline: neither a NaN nor the spike itself moves it;
    skipped steps are not part of it. The deviation counts as at least 1 % of the median. When more than
    `max_consecutive` steps in a row would be skipped, the level has changed: it is accepted, and the history begins
    anew, so that the guard never locks a run up.

    Args:
        signal: "grad_norm" (before clipping, if the guard comes first) or "loss".
        z: number of deviations, > 0.
        window: how many steps are remembered.
        min_samples: how many are needed before anything is skipped; 64, or the window if that is less, by default.
        max_consecutive: how many steps in a row are skipped at most.
        robust: False takes mean and standard deviation in place of median and deviation, as OLMo does.

    Returns:
        A transform.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> skip_spikes("loss", z=4.0).signal
        'loss'
    """
    needed = check_window(window, min_samples, 64)
    check_count(max_consecutive, "max_consecutive")
    return SkipSpikes(check_signal(signal), check_positive(z, "z"), window, needed, max_consecutive, robust)
