"""GM112 graph-leak: old graphs are kept and walked again, so that each step takes longer than the one before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.module_rows import RowMemory, Series
from gradmedic.diagnosis.ring import Floats
from gradmedic.diagnosis.view import View


@dataclass(frozen=True)
class Thresholds:
    """When growing step times are a leak (rules.md: more than 1 % a step, over at least 20 steps)."""

    slope: float = 0.01
    """Growth of the step time in one step, over its level at the start of the window."""
    window: int = 60
    """Steps that are judged together."""
    rising: float = 0.8
    """Share of all pairs of steps of which the later is the slower. Noise has 0.5, one jump to a higher level (a longer
    curriculum, a busier machine) at most 0.75."""
    growth: float = 1.5
    """The last ten steps over the first ten."""
    seconds: float = 5e-4
    """And by at least so much: shorter times are the scheduler's."""
    looks: int = 3
    """Looks in a row, ten steps apart."""
    first: int = 5
    """The first steps allocate, compile and warm caches; they are left out."""
    samples: int = 3
    """Sampled graphs that hold ever more nodes of earlier steps."""
    apart: int = 10
    """Steps that lie between them: a window of truncated backpropagation may reach over fewer."""


@dataclass
class _State:
    seconds: deque[float]
    steps: int = 0
    looks: int = 0
    since: int = 0


class GraphLeak:
    """Nodes of earlier steps in the sampled graphs, exactly; step times, for each micro-batch, robustly."""

    code = "GM112"
    name = "graph-leak"
    kind: Kind = "symptom"
    needs: frozenset[str] = frozenset()

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._states: dict[str, _State] = {}
        self._rows = RowMemory(["graph"])
        self._looked_at: dict[str, int] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at sampled graphs; keep every step's time, and look at the times every ten steps."""
        if any(row.get("what") == "loss" for row in view.frame.modules):
            self._looked_at[view.frame.optimizer] = view.frame.step
        if self._rows.take(view):
            for series in self._rows.series(view, "graph"):
                yield from self._carried(series)
        yield from self._slower(view)

    def _carried(self, series: Series) -> Iterator[Draft]:
        limits = self.thresholds
        rows = list(series)[-limits.samples :]
        carried, nodes = [row.get("carried") for row in rows], [row.get("nodes") for row in rows]
        if len(rows) < limits.samples or rows[-1].step - rows[0].step < limits.apart:
            return
        if nodes[-1] < limits.growth * nodes[0] or not all(b > a > 0 for a, b in pairwise(carried)):
            return
        yield Draft(
            severity="warning",
            confidence=0.9,
            step=series[0].step,
            evidence=(
                Evidence("nodes of the graph that earlier steps have made", int(carried[-1]), int(carried[0])),
                Evidence("nodes of the graph", int(nodes[-1]), int(nodes[0])),
            ),
            params={"carried": int(carried[-1]), "nodes": int(nodes[-1]), "last": rows[-1].step}
            | {"nodes_before": int(nodes[0]), "before": rows[0].step},
            variant="carried",
        )

    def _slower(self, view: View) -> Iterator[Draft]:
        limits, frame = self.thresholds, view.frame
        if view.final or frame.step_seconds is None or frame.step < limits.first:
            return
        state = self._states.get(frame.optimizer)
        if state is None:
            state = self._states[frame.optimizer] = _State(deque(maxlen=limits.window))
        state.seconds.append((frame.step_seconds - frame.overhead_seconds) / max(1, frame.micro_batches))
        state.steps += 1
        if state.steps % 10 or len(state.seconds) < limits.window:
            return
        times = list(state.seconds)
        before, now = median(times[:10]), median(times[-10:])
        slope, rising = 0.0, 0.0
        if now > limits.growth * before and now - before > limits.seconds:
            slope, rising = trend(np.array(times))
        leaking = slope > limits.slope and rising > limits.rising
        if leaking and not state.looks:
            state.since = max(0, frame.step - limits.window + 1)
        state.looks = state.looks + 1 if leaking else 0
        if state.looks >= limits.looks and not self._graphs_stand(view, state.since):
            yield self._draft(view, state, before, now, slope, rising)

    def _graphs_stand(self, view: View, since: int) -> bool:
        """Whether a graph that was looked at while times grew held nothing of earlier steps, or no more than before.

        Then it is the machine that has become slower: others compute on it, or it is hot. A graph without old nodes has
        no row of its own; the row of its loss says that it was looked at.
        """
        rows = [list(series)[-2:] for series in self._rows.series(view, "graph")]
        if not rows:
            return self._looked_at.get(view.frame.optimizer, -1) >= since
        return all(each[-1].step >= since and each[-1].get("nodes") <= each[0].get("nodes") for each in rows)

    def _draft(self, view: View, state: _State, before: float, now: float, slope: float, rising: float) -> Draft:
        limits = self.thresholds
        return Draft(
            severity="warning",
            confidence=0.6,
            step=state.since,
            evidence=(
                Evidence("growth of the step time in one step", slope, limits.slope),
                Evidence("step time", now, before, "s"),
                Evidence("share of pairs of steps of which the later is slower", rising, limits.rising),
            ),
            params={
                "percent": 100 * slope,
                "before": 1000 * before,
                "now": 1000 * now,
                "steps": view.frame.step - state.since + 1,
            },
        )


def trend(times: Floats) -> tuple[float, float]:
    """Return how a series grows.

    Args:
        times: at least ten positive numbers, oldest first.

    Returns:
        (slope, rising): the Theil-Sen slope in one step over the median of the first ten; the share of pairs of which
        the later is the larger.
    """
    early, late = np.triu_indices(len(times), 1)
    rises = times[late] - times[early]
    slope = float(np.median(rises / (late - early))) / float(np.median(times[:10]))
    return slope, float((rises > 0).mean())
