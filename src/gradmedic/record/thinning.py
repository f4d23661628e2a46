"""Which rows of a record stay when it outgrows its budget. No input or output here.

Rows are numbered by `ordinal`, counted per optimizer over those that were asked for (-1: nobody asked, the flight
recorder had them). A row stays when its step is *granted*, or when its ordinal is a multiple of `stride`, which starts
at 1 and doubles whenever the record is full. So what stays is evenly spaced, and new rows come in as sparse as the old
ones already are: the work for one step does not grow with the length of the run.

Guarded are the first 100 steps and 50 steps on either side of a finding. They are granted in the order in which they
come, for as long as together they take no more than their share of the budget. The last 64 steps of each optimizer are
its *tail*, which moves on with every step: what of it is on file stays while it is in it, and what came in too sparse
is handed in at the end of the run, since the last steps tell how it ended.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


class _Row(NamedTuple):
    step: int
    ordinal: int
    size: int


class Thinning:
    """The policy of one stream of rows. The training thread admits and protects, the writer's thread thins.

    Args:
        share: bytes that guarded steps may take.
        first: number of first steps that are guarded.
        around: number of steps on either side of a protected one that are guarded.
        last: number of steps in the tail of each optimizer.
    """

    def __init__(self, share: int, *, first: int = 100, around: int = 50, last: int = 64) -> None:
        self.share = share
        #: Bytes that the tail may take besides.
        self.tail_share = 2 * share // 3
        self.stride = 1
        #: Counts how often a guarantee had to be taken back; with `stride` it tells how thin a file is.
        self.relaxed = 0
        self._around = around
        self._starts: list[int] = [0]
        self._stops: list[int] = [first]
        self._granted: dict[int, int] = {}  # step -> bytes, in the order of granting
        self._granted_bytes = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=256)
        self._last = last
        self._tails: dict[str, deque[_Row]] = {}  # by optimizer, oldest first
        self._newest = -1
        self._newest_ordinal = 0
        self._lock = threading.Lock()

    @property
    def density(self) -> tuple[int, int]:
        """What a file has been thinned to."""
        return self.stride, self.relaxed

    def guarded(self, step: int) -> bool:
        """Whether a step is one of the first, or near a protected one."""
        at = bisect_right(self._starts, step) - 1
        return at >= 0 and step < self._stops[at]

    def admit(self, step: int, ordinal: int, size: int, optimizer: str = "") -> bool:
        """Whether a row group of about `size` bytes shall be written at all."""
        with self._lock:
            if ordinal >= 0:
                self._lengthen_tail(step, ordinal, size, optimizer)
            self._newest = max(self._newest, step)
            self._newest_ordinal = max(self._newest_ordinal, ordinal)
            granted = self.guarded(step) and self._grant(step, size)
            if not granted and (ordinal < 0 or ordinal % self.stride):
                return False
            self._recent.append((step, size))
            return True

    def protect(self, step: int) -> None:
        """Guard the surroundings of `step`, of the past and to come."""
        self.guard(max(0, step - self._around), step + self._around + 1)

    def guard(self, start: int, stop: int) -> None:
        """Guard the steps [start, stop)."""
        with self._lock:
            self._add_zone(start, stop)
            recent = dict(self._recent)
            oldest = min(recent, default=self._newest + 1)
            usual = sum(recent.values()) // max(1, len(recent))
            for past in range(start, min(stop, self._newest + 1)):
                if past in self._granted:
                    continue
                if past in recent:
                    self._grant(past, recent[past])
                elif past < oldest:  # on file perhaps, one in `stride`
                    self._grant(past, usual // self.stride)

    def keep(self, steps: Integers, ordinals: Integers) -> Mask:
        """Return which rows stay at the present stride: bool [N] for steps [N] and ordinals [N]."""
        with self._lock:
            guarded = np.isin(steps, np.fromiter([*self._granted, *self._tail()], dtype=np.int64))
        regular: Mask = (ordinals >= 0) & (ordinals % self.stride == 0)
        return guarded | regular

    def tail(self) -> set[int]:
        """Return the last steps of every optimizer, as many of the newest as their share of the budget can hold."""
        with self._lock:
            return self._tail()

    def tighten(self) -> bool:
        """Double the stride; then give up the later half of the guarded rows, then half of the tail's share.

        Returns:
            False when nothing is left to be given up.
        """
        with self._lock:
            if self.stride <= self._newest_ordinal:
                self.stride *= 2
                return True
            if self._granted:
                self._granted = dict(list(self._granted.items())[: len(self._granted) // 2])
                self._granted_bytes = self.share = sum(self._granted.values())
            elif self._tail():
                self.tail_share //= 2
            else:
                return False
            self.relaxed += 1
            return True

    def _lengthen_tail(self, step: int, ordinal: int, size: int, optimizer: str) -> None:
        tail = self._tails.setdefault(optimizer, deque())
        if tail and tail[-1].ordinal >= ordinal:  # offered once more, out of the flight recorder
            return
        tail.append(_Row(step, ordinal, size))
        # Steps begin anew where a checkpoint was loaded: what lies ahead then is of an earlier time.
        while tail and not step - self._last < tail[0].step <= step:
            tail.popleft()

    def _tail(self) -> set[int]:
        newest_first = [list(reversed(tail)) for tail in self._tails.values()]
        steps: set[int] = set()
        room = self.tail_share
        for rows in zip_longest(*newest_first):
            for row in rows:
                if row is None:
                    continue
                room -= row.size
                if room < 0:
                    return steps
                steps.add(row.step)
        return steps

    def _grant(self, step: int, size: int) -> bool:
        known = self._granted.get(step, 0)
        grown = self._granted_bytes + size
        if grown > self.share:
            return step in self._granted
        self._granted[step] = known + size  # a second optimizer's table of the same step adds to the first's
        self._granted_bytes = grown
        return True

    def _add_zone(self, start: int, stop: int) -> None:
        starts, stops = [], []
        for low, high in zip(self._starts, self._stops, strict=True):
            if high < start or low > stop:
                starts.append(low)
                stops.append(high)
            else:
                start, stop = min(start, low), max(stop, high)
        at = bisect_right(starts, start)
        self._starts = [*starts[:at], start, *starts[at:]]
        self._stops = [*stops[:at], stop, *stops[at:]]
