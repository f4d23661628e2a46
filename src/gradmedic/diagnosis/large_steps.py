"""Stretches of steps that are large beside the weights, and whether they led up to what went wrong."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

#: Ratios of the latest steps that are remembered.
_LATEST = 32


@dataclass
class Spell:
    """Steps above a threshold that follow each other closely.

    Attributes:
        first, last: its first and last step, None before the first one.
        onset: the value at its first step.
    """

    first: int | None = None
    last: int | None = None
    onset: float = math.nan

    def add(self, step: int, value: float, memory: int) -> None:
        """Take one step above the threshold; more than `memory` steps after the last one, a new spell begins."""
        if self.last is None or step - self.last > memory:
            self.first, self.onset = step, value
        self.last = step

    def began_before(self, step: int, memory: int) -> bool:
        """Whether it began before a step, and was not over for more than `memory` steps when that came."""
        return self.first is not None and self.last is not None and self.first < step <= self.last + memory


@dataclass
class LargeSteps:
    """The ratios |update| / |weight| of one optimizer, held against two thresholds.

    Args:
        notice, fault: the thresholds.
        memory: steps after which a large one is forgotten.

    Attributes:
        above: steps above the fault threshold, in the whole run.
        noticed, faulty: the latest spell above each.
        peak, recent: the largest finite ratio above `notice`, and the last ratio.
    """

    notice: float
    fault: float
    memory: int
    above: int = 0
    noticed: Spell = field(default_factory=Spell)
    faulty: Spell = field(default_factory=Spell)
    peak: float = 0.0
    recent: float = math.nan
    latest: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_LATEST))

    def add(self, step: int, ratio: float) -> None:
        """Take the ratio of one step; NaN is no size."""
        self.recent = ratio
        self.latest.append((step, ratio))
        if not ratio > self.notice:
            return
        # A step that makes weights infinite has no size; the last one that had one says more.
        self.peak = max(self.peak, ratio) if math.isfinite(ratio) else self.peak or ratio
        self.noticed.add(step, ratio, self.memory)
        if ratio > self.fault:
            self.above += 1
            self.faulty.add(step, ratio, self.memory)

    @property
    def spell(self) -> Spell:
        """The spell to speak of: above the fault threshold, where there was one."""
        return self.noticed if self.faulty.first is None else self.faulty

    def led_up_to(self, step: int, lead: int) -> bool:
        """Whether one of the `lead` steps before this one was above the notice threshold."""
        return any(step - lead <= at < step and ratio > self.notice for at, ratio in self.latest)
