"""GM410 gan-imbalance: the discriminator has won, and the generator's gradients collapse or explode."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.history import SCALAR_STEPS, History
from gradmedic.diagnosis.ring import Floats
from gradmedic.diagnosis.view import View


@dataclass(frozen=True)
class Thresholds:
    """When one of two players has won."""

    loss: float = 0.05
    """Median loss of the winner (rules.md). A loss that is ever negative is a critic's, and has no such floor."""
    won_from: float = 0.2
    """What it must have come down from; a coin flip costs 2 ln 2 = 1.39."""
    factor: float = 10.0
    """The loser's gradient norm is so many times smaller or larger than at first (rules.md: a robust z of 6, which is
    this factor at a spread of 0.4 in the log). No z is taken: a discriminator may win while the spread is measured."""
    first: int = 10
    """Steps at the start whose norms are the measure: a discriminator may win within thirty."""
    recent: int = 20
    """Steps of the loser that are judged."""
    won: int = 50
    """Steps for which the winner must have been ahead: a GAN in good health is so for a while."""
    thrown: float = 5.0
    """Or its loss is so many times what it was, and a coin flip's: the first steps may already belong to the winner."""
    back: float = 0.2
    """A winner whose median loss is above this again has not won after all."""


class GanImbalance:
    """Looks, from each optimizer, for another one whose loss is all but zero."""

    code = "GM410"
    name = "gan-imbalance"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._first: dict[str, float] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Keep how each begins; look every ten steps, where there are several optimizers with losses of their own."""
        limits = self.thresholds
        if len(view.histories) < 2 or not (view.final or view.history.steps % 10 == 0):
            return
        norms = _finite(view.window("grad_norm", SCALAR_STEPS))
        norms = norms[norms > 0]
        if len(norms) < limits.first:
            return
        base = self._first.setdefault(view.frame.optimizer, float(np.median(np.log(norms[: limits.first]))))
        if view.history.steps < limits.won + limits.first or not view.several_optimizers:
            return
        # A loser's loss rises, whichever way it is written: -log D goes up, and so does log(1 - D), from below to 0.
        if not view.history.loss.count or not view.loss.recent > view.loss.first:
            return
        now = float(np.median(np.log(norms[-limits.recent :])))
        thrown = view.loss.recent > limits.thrown * max(view.loss.first, math.log(2))
        if abs(now - base) < math.log(limits.factor) and not thrown:
            return
        for name, other in view.histories.items():
            if other is not view.history and self._has_won(other):
                yield self._draft(view, name, other, now - base)

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when the winner's loss is up again: that of a GAN in good health rises and falls."""
        limits = self.thresholds
        winner = view.histories.get(str(finding.params.get("winner")))
        if winner is not view.history or not (view.final or winner.steps % 10 == 0):
            return True
        losses = _finite(winner.window("loss", limits.won))
        return len(losses) < limits.won or float(np.median(losses)) < limits.back

    def _has_won(self, other: History) -> bool:
        limits = self.thresholds
        losses = _finite(other.window("loss", SCALAR_STEPS))
        if len(losses) < limits.won or losses.min() < 0:
            return False
        late = float(np.median(losses[-limits.won :]))
        return late < limits.loss and other.loss.first > limits.won_from

    def _draft(self, view: View, winner: str, other: History, change: float) -> Draft:
        limits = self.thresholds
        times = math.exp(change)
        return Draft(
            severity="warning",
            confidence=0.75,
            step=self._onset(view, other),
            evidence=(
                Evidence("loss of the winner, median of 20 steps", other.loss.summary().recent, limits.loss),
                Evidence("loss of the loser, median of 20 steps", view.loss.recent, view.loss.first),
                Evidence(
                    "gradient norm of the loser, over its early median",
                    times,
                    limits.factor if change > 0 else 1 / limits.factor,
                ),
            ),
            params={
                "winner": winner,
                "loser": view.frame.optimizer,
                "loss": other.loss.summary().recent,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
                "times": times,
            },
            variant="exploded" if change > 0 else "",
            key=f"{winner}>{view.frame.optimizer}",
        )

    def _onset(self, view: View, other: History) -> int:
        """Return the first step of the loser's window at which the winner's loss is all but zero."""
        low = np.flatnonzero(other.window("loss", SCALAR_STEPS) < self.thresholds.loss)
        steps = view.window("step", SCALAR_STEPS)
        # Where one of them makes several steps to the other's one, places stand for times.
        share = low[0] / min(other.steps, SCALAR_STEPS) if len(low) else 1.0
        return int(steps[min(int(share * len(steps)), len(steps) - 1)])


def _finite(values: Floats) -> Floats:
    found: Floats = values[np.isfinite(values)]
    return found
