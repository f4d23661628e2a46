"""How often something may be done, so that it takes no more than a share of one core."""

from __future__ import annotations

import time
from types import TracebackType


class Pace:
    """Lets something happen once in `least` seconds, and rests for `times` the processor time that it took.

    Example:
        >>> pace = Pace(least=60.0)
        >>> pace.due
        True
        >>> with pace:
        ...     pass
        >>> pace.due
        False
    """

    def __init__(self, least: float, times: float = 5.0) -> None:
        self.cost = 0.0
        self._least, self._times = least, times
        self._begun = self._cpu = 0.0
        self._next = float("-inf")

    @property
    def due(self) -> bool:
        """Whether it may happen now."""
        return time.monotonic() >= self._next

    def __enter__(self) -> Pace:
        self._begun, self._cpu = time.monotonic(), time.thread_time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cost = time.thread_time() - self._cpu
        self._next = max(self._begun + self._least, time.monotonic() + self._times * self.cost)
