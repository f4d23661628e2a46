"""How times are taken on a device: a budget of seconds, events on the stream, candidates in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

Calls = dict[str, Callable[[], object]]
#: Cycles of a device in a millisecond, at most: it is kept busy before each call for longer than the host takes to
#: launch it, so that the host is ahead.
_CYCLES = 2_000_000


class Budget:
    """Seconds that may be spent; sections take theirs from the whole.

    Args:
        seconds: how long from now.
        clock: returns the time in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        return self._end - self._clock()

    @property
    def over(self) -> bool:
        return self.left <= 0

    def part(self, seconds: float) -> Budget:
        """Return the budget of a section: so many seconds from now, and no more than is left."""
        return Budget(min(seconds, self.left), self._clock)


@dataclass
class Timings:
    """Milliseconds of each call, by candidate, one a round; `cut` where the budget ended the rounds early."""

    device: dict[str, list[float]] = field(default_factory=dict)
    host: dict[str, list[float]] = field(default_factory=dict)
    planned: int = 0
    cut: bool = False

    @property
    def rounds(self) -> int:
        return min((len(each) for each in self.device.values()), default=0)

    def median(self, name: str) -> float:
        return statistics.median(self.device[name])

    def host_median(self, name: str) -> float:
        return statistics.median(self.host[name])

    def ratio(self, name: str, base: str) -> tuple[float, float, float]:
        """Return the median of the rounds' ratios and its 95 % bootstrap interval."""
        return interval([a / b for a, b in zip(self.device[name], self.device[base], strict=False)])


def interval(values: list[float], draws: int = 2000) -> tuple[float, float, float]:
    """Return the median and its 95 % bootstrap interval; the same values give the same interval."""
    drawn = np.random.default_rng(0).choice(np.array(values), size=(draws, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return statistics.median(values), float(low), float(high)


class Stopwatch:
    """Takes the times of calls: on CUDA between two events, elsewhere with the host's clock."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def interleaved(
        self,
        calls: Calls,
        rounds: int,
        budget: Budget,
        *,
        before: Callable[[], object] = lambda: None,
        warm: int = 2,
    ) -> Timings:
        """Call every candidate once a round, in an order that turns with it; three rounds whatever the budget.

        Args:
            calls: candidates by name.
            rounds: as many as there is time for, at most these.
            budget: ends the rounds.
            before: puts things back before each call, outside its time.
            warm: calls of each candidate that are not timed: they compile kernels and fill caches.
        """
        ahead = dict.fromkeys(calls, 0.0)
        found = Timings({name: [] for name in calls}, {name: [] for name in calls}, rounds)
        for name, call in calls.items():
            for _ in range(warm):
                before()
                start = time.perf_counter()
                call()
                ahead[name] = 1e3 * (time.perf_counter() - start)
        self.wait()
        names = list(calls)
        for turn in range(rounds):
            if turn >= min(3, rounds) and budget.over:
                found.cut = True
                break
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                before()
                on_device, on_host = self._timed(calls[name], ahead[name])
                found.device[name].append(on_device)
                found.host[name].append(on_host)
        return found

    def until_done(self, call: Callable[[], object]) -> float:
        """Return the milliseconds that a call takes until the device is done with it."""
        self.wait()
        start = time.perf_counter()
        call()
        self.wait()
        return 1e3 * (time.perf_counter() - start)

    def _timed(self, call: Callable[[], object], ahead: float) -> tuple[float, float]:
        if not self.cuda:
            start = time.perf_counter()
            call()
            spent = 1e3 * (time.perf_counter() - start)
            return spent, spent
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        sleep = getattr(torch.cuda, "_sleep", None)
        if sleep is not None:
            sleep(round(_CYCLES * (2 + 2 * min(ahead, 100.0))))
        begin.record()
        start = time.perf_counter()
        call()
        on_host = 1e3 * (time.perf_counter() - start)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end), on_host
