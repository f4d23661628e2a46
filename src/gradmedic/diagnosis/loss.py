"""How the loss goes: first, best, recent; whether it falls and whether it has left for good."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

#: Until so many losses are known, "not falling" is not said: warm-up and noise look the same before.
ENOUGH = 40
#: Fall below the first loss that counts as falling (rules.md: harm gate, "best - 2 %").
FALL = 0.02
#: A loss that has fallen by less than this, and stands still, does not fall either: a network that learns nothing but
#: the prior of its labels gets there (20 sigmoid layers on digits: from 2.3-2.7 to ln 10 = 2.303 within 10 steps).
STALL = 0.15
#: A loss this many times the larger of 1 and what it began with has exploded, also where losses rise and fall against
#: each other: the cross-entropy of a discriminator that is wrong for certain is about 100, a critic's loss under 1000.
EXPLODED = 1e3
_EMA = 0.1
_NOISE = 0.02
_BEST_AFTER = 5
_RECENT = 20


@dataclass(frozen=True, slots=True)
class LossSummary:
    """The loss so far.

    Attributes:
        count: finite losses seen.
        start: the very first loss, before any step.
        first: first loss (the lower of the first and the median of the first five); NaN when there is none.
        best: lowest smoothed loss.
        recent: median of the last 20 finite ones; `recent_steps` are the first and the last step that it is taken over.
        high: the largest of the last three finite ones, which was measured at `high_step`; NaN when there is none.
        last: the last loss, finite or not; None when there is none.
        falling: recent at least 2 % below first, and not standing still within 15 % of it; None while fewer than 40
            losses are known.
        trend: (recent - first) / |first|.
        diverged: the level of the last three is far above the best, beyond noise.
        exploded: the level of the last three is orders of magnitude above the first and above 1.
        calm: losses since the last at which it was.
        nonfinite_step, diverged_step, exploded_step: first step of each, or None.
    """

    count: int = 0
    start: float = math.nan
    first: float = math.nan
    best: float = math.nan
    recent: float = math.nan
    recent_steps: tuple[int, int] | None = None
    high: float = math.nan
    high_step: int | None = None
    last: float | None = None
    falling: bool | None = None
    trend: float = math.nan
    diverged: bool = False
    exploded: bool = False
    calm: int = 0
    nonfinite_step: int | None = None
    diverged_step: int | None = None
    exploded_step: int | None = None

    @property
    def relapsed(self) -> bool:
        """Whether the loss had clearly fallen, and most of that has been lost again.

        What kept a network from learning from the start did not do this: other data did, or steps that were too large.
        """
        fallen = self.first - self.best
        return fallen > STALL * abs(self.first) and self.recent - self.best > 0.5 * fallen


class LossTracker:
    """Keeps what `LossSummary` needs in constant memory; feed it every step's loss."""

    __slots__ = (
        "_best",
        "_calm",
        "_early",
        "_ema",
        "_last",
        "_marks",
        "_noise",
        "_recent",
        "_since",
        "_steps",
        "_summary",
        "_weight",
        "count",
    )

    def __init__(self) -> None:
        self.count = 0
        self._early: list[float] = []
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._steps: deque[int] = deque(maxlen=_RECENT)
        #: Median of the last 20 losses when 20, 40, 80, … were known.
        self._marks: list[float] = []
        self._ema = self._weight = 0.0
        self._noise = 0.0
        self._best = math.nan
        self._last: float | None = None
        self._calm = 0
        self._summary: LossSummary | None = None
        self._since: dict[str, int | None] = {"nonfinite": None, "diverged": None, "exploded": None}

    def update(self, loss: float | None, step: int) -> None:
        """Take the loss of one step; None (not seen) is left out."""
        if loss is None:
            return
        self._summary = None
        self._last = loss
        if not math.isfinite(loss):
            if self._since["nonfinite"] is None:
                self._since["nonfinite"] = step
            return
        self.count += 1
        if len(self._early) < _BEST_AFTER:
            self._early.append(loss)
        self._recent.append(loss)
        self._steps.append(step)
        if self.count == _RECENT << len(self._marks):
            self._marks.append(median(self._recent))
        self._measure_noise(loss)
        self._ema = (1 - _EMA) * self._ema + _EMA * loss
        self._weight = (1 - _EMA) * self._weight + _EMA
        smooth = self._ema / self._weight
        # The first few losses are noise: a lucky first batch must not become the best that all others are held to.
        if self.count >= _BEST_AFTER and not smooth >= self._best:
            self._best = smooth
        self._calm = 0 if self.diverged else self._calm + 1
        if self._since["diverged"] is None and not self._calm:
            self._since["diverged"] = step
        if self._since["exploded"] is None and self.exploded:
            self._since["exploded"] = step

    @property
    def opening(self) -> tuple[float, ...]:
        """The first losses, at most five."""
        return tuple(self._early)

    @property
    def first(self) -> float:
        """The lower of the first loss and the median of the first five."""
        return min(self._early[0], median(self._early)) if self._early else math.nan

    @property
    def diverged(self) -> bool:
        """Whether the median of the last three losses is above twice the best, above the first, and above the noise.

        Written with differences, so that losses below zero (VAE, WGAN) are judged alike. With fewer than ten losses
        noise is unknown, and only a rise by ten times the first loss counts.
        """
        if self.count < 2:
            return False
        level, first = self._level(), self.first
        if self.count < 10:
            return level > first + 10 * abs(first)
        return level > self._best + max(abs(self._best), abs(first - self._best)) + 5 * self._noise

    @property
    def exploded(self) -> bool:
        """Whether the median of the last three losses is a thousand times the first one, and above a thousand."""
        if self.count < 2 or max(self._recent[-1], self._recent[-2]) <= EXPLODED:
            return False
        return self._level() > EXPLODED * max(1.0, abs(self.first))

    def _level(self) -> float:
        """Return the median of the last three losses, of fewer where fewer are known."""
        if self.count < 3:
            return median(self._recent)
        recent = self._recent
        return sorted((recent[-1], recent[-2], recent[-3]))[1]

    def _measure_noise(self, loss: float) -> None:
        """Follow the mean distance from the smoothed loss.

        After the first ten losses a single one counts for at most three times what is known, so that a loss on its way
        out raises its own bar by no more than 4 % a step.
        """
        distance = abs(loss - self._ema / self._weight) if self._weight else 0.0
        if self.count <= 10:
            self._noise += (distance - self._noise) / self.count
        else:
            self._noise += _NOISE * (min(distance, 3 * self._noise) - self._noise)

    def summary(self) -> LossSummary:
        """Return the loss so far."""
        if self._summary is None:
            self._summary = self._summarize()
        return self._summary

    def _summarize(self) -> LossSummary:
        if not self.count:
            return LossSummary(last=self._last, nonfinite_step=self._since["nonfinite"])
        first, recent = self.first, median(self._recent)
        scale = abs(first) or 1.0
        latest = range(max(0, len(self._recent) - 3), len(self._recent))
        highest = max(latest, key=lambda at: self._recent[at])
        return LossSummary(
            count=self.count,
            start=self._early[0],
            first=first,
            best=first if math.isnan(self._best) else self._best,
            recent=recent,
            recent_steps=(self._steps[0], self._steps[-1]),
            high=self._recent[highest],
            high_step=self._steps[highest],
            last=self._last,
            falling=self._falling(first, recent, scale),
            trend=(recent - first) / scale,
            diverged=self.diverged,
            calm=self._calm,
            exploded=self.exploded,
            nonfinite_step=self._since["nonfinite"],
            diverged_step=self._since["diverged"],
            exploded_step=self._since["exploded"],
        )

    def _falling(self, first: float, recent: float, scale: float) -> bool | None:
        if self.count < ENOUGH:
            return None
        fall = (first - recent) / scale
        # The last mark at or before half of the losses: 40 of 80 to 159.
        half = self._marks[max(0, (self.count // (2 * _RECENT)).bit_length() - 1)]
        stalled = fall < STALL and recent > half - FALL * scale
        return fall > FALL and not stalled
