"""GM409 false-convergence: a layer's steps are orders of magnitude smaller than the others', so that it stays as it is.

The loss may fall meanwhile, because the other layers learn: it looks like convergence, and is not that of this layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.ratios import column_medians, matrices, update_ratios
from gradmedic.diagnosis.ring import Floats
from gradmedic.diagnosis.view import View


@dataclass(frozen=True)
class Thresholds:
    """When a layer lags behind."""

    ratio: float = 1e-3
    """Median update ratio of the layer over the median of all layers (rules.md)."""
    steps: int = 200
    """Steps without a break (rules.md)."""
    layers: int = 3
    """Fewer matrices have no median that one of them could be held against."""
    rates: float = 10.0
    """Learning rates of groups that differ by more than this are meant to move layers differently."""


@dataclass
class _State:
    names: tuple[str, ...] = ()
    since: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


class FalseConvergence:
    """Compares each weight matrix with the median one, over a long time."""

    code = "GM409"
    name = "false-convergence"
    kind: Kind = "symptom"
    needs = frozenset({"norm", "update_norm", "weight_norm"})
    period = 20
    window = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._states: dict[str, _State] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look every twenty tables; speak when a layer has lagged for 200 steps."""
        limits = self.thresholds
        if not view.due(self.period) or view.history.tables < self.window:
            return
        places, _ = matrices(view.layout)
        if len(places) < limits.layers:
            return
        state = self._states.setdefault(view.frame.optimizer, _State())
        # The places are chosen by what the facts say; these change where a model is rebuilt under new names.
        if state.names != view.layout.names or len(state.since) != len(places):
            state.names, state.since = view.layout.names, np.full(len(places), -1, dtype=np.int64)
        if _meant_to_differ(view, limits.rates):
            state.since[:] = -1
            return
        ratios = column_medians(np.asarray(update_ratios(view, self.window)))
        known = ratios[np.isfinite(ratios)]
        if len(known) < limits.layers:
            return
        middle = float(np.median(known))
        # A layer with no gradient at all is frozen or unused, which other rules say.
        alive = (view.tensor_window("norm", self.window)[:, places] > 0).all(axis=0)
        lagging = alive & (ratios < limits.ratio * middle)
        first = int(view.history.table_steps.window(self.window)[0, 0])
        state.since = np.where(lagging, np.where(state.since < 0, first, state.since), -1)
        ripe = lagging & (view.frame.step - state.since >= limits.steps)
        if ripe.any():
            yield self._draft(view, places[ripe], ratios[ripe], middle, int(state.since[ripe].min()))

    def _draft(self, view: View, places: npt.NDArray[np.int64], ratios: Floats, middle: float, since: int) -> Draft:
        limits = self.thresholds
        harmed = view.harm.reason == "not_falling"
        lowest = float(ratios.min())
        return Draft(
            severity="warning" if harmed else "info",
            confidence=0.6 if harmed else 0.5,
            step=since,
            where=view.layout.pick(places),
            evidence=(
                Evidence("update / weight of the layer, over the median layer's", lowest / middle, limits.ratio),
                Evidence("update / weight, median over matrices", middle),
                Evidence("steps in a row", view.frame.step - since, limits.steps, "steps"),
                Evidence("loss, median of 20 steps", view.loss.recent, view.loss.first),
            ),
            params={
                "n": len(places),
                "ratio": lowest,
                "median": middle,
                "steps": view.frame.step - since,
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
            variant="" if harmed else "note",
        )


def _meant_to_differ(view: View, most: float) -> bool:
    """Whether the parameter groups have learning rates of their own."""
    rates = view.frame.lrs
    return len(rates) > 1 and (min(rates) <= 0 or max(rates) > most * min(rates))
