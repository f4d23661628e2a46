"""Whether a loss runs off below zero: it is far beyond where it began, falls on, and its gradients grow with it.

Losses that may be negative for good reasons (densities, flows, critics, an evidence bound) level off, and their
gradients shrink on the way. What has no lower bound, a log-likelihood with the wrong sign or one whose scale may go to
zero, speeds up instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradmedic.diagnosis.view import View

_EARLY = 5


@dataclass(frozen=True)
class Depths:
    """How far below zero, and how fast, a loss has no floor.

    Attributes:
        times: size of the loss over 1 + |its first value|.
        growth: median gradient norm over that of the first five steps.
        steps: losses over which it has to fall still, first third against last third.
        fall: how much it has to fall over these, as a part of its size.
    """

    times: float = 1e3
    growth: float = 10.0
    steps: int = 60
    fall: float = 0.02


class Bottomless:
    """Remembers how large gradients were at first; feed it every step."""

    __slots__ = ("_depths", "_early")

    def __init__(self, depths: Depths | None = None) -> None:
        self._depths = depths or Depths()
        self._early: list[float] = []

    def growth(self, view: View) -> float | None:
        """Return by how many times the gradients have grown under a loss without a floor; None for any other loss."""
        depths, norm, loss = self._depths, view.frame.grad_norm, view.frame.loss
        if len(self._early) < _EARLY:
            if norm is not None and np.isfinite(norm):
                self._early.append(norm)
            return None
        if (
            loss is None
            or not loss < -depths.times
            or not view.loss.recent < -depths.times * (1 + abs(view.loss.first))
        ):
            return None
        losses = view.window("loss", depths.steps)
        third = depths.steps // 3
        if len(losses) < depths.steps or not np.isfinite(losses).all():
            return None
        before, now = float(np.median(losses[:third])), float(np.median(losses[-third:]))
        norms = view.window("grad_norm", third)
        first = float(np.median(self._early))
        grown = float(np.median(norms)) / first if first > 0 else 0.0
        return grown if now < before - depths.fall * abs(now) and grown > depths.growth else None
