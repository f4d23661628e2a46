"""Losses that stand out: while the graph of such a step is still there, its batch can be looked at."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import torch

#: Losses before this one that it is held against, and how many of them must be known.
WINDOW = 32
LEAST = 5
#: Height above all of them, as a share of their range: noise alone exceeds it in about one of 250 steps.
MARGIN = 0.25
#: Depth below all of them, as a share of their range and of the lowest: a loss that falls fast sets one record after
#: the other.
DEPTH = 1.0
DROP = 0.25
#: Looks in one run; a run that diverges sets one record after the other.
MAX_LOOKS = 64


class Startle:
    """Follows the losses of backward passes.

    A loss startles when it lies above all of the last 32 by more than a quarter of their own range, below all of them
    by more than the whole of it and a quarter of the lowest (a batch that is too easy), or is the first that is not
    finite. On an accelerator the value is not read, since that would make the host wait: nothing startles there.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._looks = 0
        self._broken = False

    def notice(self, roots: Sequence[torch.Tensor]) -> bool:
        """Take the loss of a backward pass; returns whether it startles.

        Args:
            roots: the tensors on which `backward` is about to be called; only a single number on the CPU counts.
        """
        # Of subclasses (distributed, fake) a value may cost a communication, or not exist.
        plain = len(roots) == 1 and type(roots[0]) is torch.Tensor and roots[0].is_cpu and not roots[0].is_complex()
        if not plain or roots[0].numel() != 1:
            return False
        value = float(roots[0].item())
        if not math.isfinite(value):
            startling, self._broken = not self._broken, True
        else:
            startling = self._stands_out(value)
            self._recent.append(self._bounded(value))
        if not startling or self._looks >= MAX_LOOKS:
            return False
        self._looks += 1
        return True

    def _bounded(self, value: float) -> float:
        """Return the value as it is remembered: what leaps up doubles the range at most.

        One bad batch must not hide the next ones behind it; a loss that stays up is the usual one after a few steps.
        """
        if len(self._recent) < LEAST:
            return value
        low, high = min(self._recent), max(self._recent)
        return min(value, high + max(high - low, abs(high)))

    def _stands_out(self, value: float) -> bool:
        if len(self._recent) < LEAST:
            return False
        low, high = min(self._recent), max(self._recent)
        if value > high:
            return value - high > MARGIN * (high - low)
        return low - value > max(DEPTH * (high - low), DROP * abs(low))
