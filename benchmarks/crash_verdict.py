"""When a run has crashed: its weights are no numbers, or its loss has risen and stays there."""

from __future__ import annotations

import math
import statistics
from collections import deque

#: Steps over which the level of the loss is taken; how far above its best level it counts as lost.
WINDOW, FACTOR = 100, 1.15


class LossLevel:
    """Follows the median loss of the last WINDOW steps, and the lowest that it has been since the last restart."""

    def __init__(self, best: float = math.inf) -> None:
        self.best = best
        self._last: deque[float] = deque(maxlen=WINDOW)

    def add(self, loss: float) -> bool:
        """Take in a loss (one that is not finite counts as infinite); return whether the run has diverged."""
        self._last.append(loss if math.isfinite(loss) else math.inf)
        if len(self._last) < WINDOW:
            return False
        level = statistics.median(self._last)
        self.best = min(self.best, level)
        return level > FACTOR * self.best
