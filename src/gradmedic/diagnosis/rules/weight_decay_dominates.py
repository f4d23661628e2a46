"""GM407 weight-decay-dominates: weights are pulled to zero faster than gradients can build them up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.history import leading_rate
from gradmedic.diagnosis.optimizer_facts import decays_beside, group_places, numbers_of, rates_of
from gradmedic.diagnosis.ratios import column_medians, matrices
from gradmedic.diagnosis.ring import Floats
from gradmedic.diagnosis.view import View


@dataclass(frozen=True)
class Thresholds:
    """When decay has the upper hand."""

    share: float = 0.5
    """Share of the decay in the update, median over matrices (rules.md)."""
    window: int = 50
    """Tables over which it holds, and over which weights shrink."""
    pace: float = 0.3
    """Weights shrink by at least this part of what the decay alone would take: those of a scale-invariant network
    shrink until growth and decay balance, and then stay."""
    least: float = 0.02
    """And by at least this part of themselves."""
    lost: float = 0.5
    """Or they have lost this part of what they had at first, and the little that is left is in balance: gradients do
    nothing but offset the decay."""
    layers: float = 0.5
    """Share of the matrices that do so."""
    forgets: float = 0.05
    """A decay that takes this part of every weight in a step leaves of what was learned twenty steps ago a third: no
    training wants that, whatever its loss does. Usual ones take 1e-6 (SGD 0.1 x 5e-4 with momentum: 5e-4) to 1e-3."""
    ordinary: float = 1.0
    """A decay up to this is chosen now and then (0.01 to 0.3 are usual): what is out of order may be the rate."""
    moved: float = 0.1
    """The gradient alone moves the weights by this part of their size in the very first step: the rate is far too high,
    and so the decay, which it multiplies, is too (the fault threshold of GM401)."""
    short: int = 20
    """Tables over which such a decay must have made the updates."""


@dataclass(frozen=True)
class _First:
    """The first table of an optimizer: the names of its tensors, the step, and norms and rates of each [P]."""

    names: tuple[str, ...]
    step: int
    weights: Floats
    updates: Floats
    rates: Floats


class WeightDecayDominates:
    """The decay that the optimizer was given, beside the gradients and the updates that were measured."""

    code = "GM407"
    name = "weight-decay-dominates"
    kind: Kind = "symptom"
    needs = frozenset({"norm", "update_norm", "weight_norm"})
    period = 10

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._first: dict[str, _First] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Keep the first weights; look every ten tables at a run that is harmed, or that forgets."""
        limits = self.thresholds
        first = self._first.get(view.frame.optimizer)
        if view.table and (first is None or first.names != view.layout.names):
            weights, updates = (view.tensor_window(name, 1)[-1].copy() for name in ("weight_norm", "update_norm"))
            first = _First(view.layout.names, view.frame.step, weights, updates, rates_of(view))
            self._first[view.frame.optimizer] = first
        if first is None or not view.due(self.period) or view.history.tables < limits.short:
            return
        places, floor = matrices(view.layout)
        decay = np.nan_to_num(numbers_of(view, "weight_decay")[places])
        rates = np.nan_to_num(rates_of(view)[places])
        if not (decay * rates > 0).any():
            return
        groups = group_places(view)[places]
        for group in np.unique(groups[decay * rates > 0]):
            mine = groups == group
            yield from self._forgetful(view, places[mine], (first.weights[places] > floor)[mine], decay[mine])
        if view.harm.reason not in ("not_falling", "diverged") or view.history.tables < limits.window:
            return
        weights = view.tensor_window("weight_norm", limits.window)
        then, now = weights[0, places], weights[-1, places]
        began = first.weights[places]
        with np.errstate(divide="ignore", invalid="ignore"):
            lately, ever = np.log(then / now), np.log(began / now)
        due = np.maximum(limits.pace * self._alone(view, places, decay, limits.window), -math.log1p(-limits.least))
        # Weights that a step too large has blown up fall back as well: what has grown since the start has lost nothing.
        losing = ((lately > due) | (ever > -math.log1p(-limits.lost))) & (ever > 0)
        if losing.mean() < limits.layers:
            return
        share = column_medians(self._shares(view, places, weights[:, places], decay))
        falling = (share > limits.share) & losing & (began > floor)
        if falling.mean() >= limits.layers:
            found = float(np.median(share[falling])), ever[falling], float(np.median(decay[falling]))
            yield self._draft(view, places[falling], *found, first.step)

    def _forgetful(self, view: View, places: np.ndarray, counted: np.ndarray, decay: Floats) -> Iterator[Draft]:
        """Yield a draft where the rate of the decay by itself says that nothing can be kept, and the updates agree."""
        limits = self.thresholds
        if not (decays_beside(view) or "sgd" in view.optimizer_class.lower()):
            return  # Adam divides a decay that goes through the gradient by its own size
        tables = view.history.table_steps.window(limits.short)[:, 0]
        taken = float(self._alone(view, places, decay, limits.short)[0]) / max(1.0, float(tables[-1] - tables[0]))
        if taken < limits.forgets:
            return
        weights = view.tensor_window("weight_norm", limits.short)[:, places]
        share = column_medians(self._shares(view, places, weights, decay))
        made = (share > limits.share) & counted
        if made.mean() >= limits.layers:
            yield self._forgetful_draft(view, places[made], float(np.median(share[made])), float(decay[0]), taken)

    def _by_rate(self, view: View, places: np.ndarray, decay: float) -> dict[str, bool]:
        """Return {"by_rate": True} where an ordinary decay takes so much because the rate is far too high."""
        limits, first = self.thresholds, self._first[view.frame.optimizer]
        weights = first.weights[places]
        taken = np.nan_to_num(first.rates[places]) * decay * weights
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = np.sqrt(np.maximum(first.updates[places] ** 2 - taken**2, 0.0)) / weights
        known = moved[np.isfinite(moved)]
        high = decay <= limits.ordinary and len(known) > 0 and float(np.median(known)) > limits.moved
        return {"by_rate": True} if high else {}

    def _shares(self, view: View, places: np.ndarray, weight: Floats, decay: Floats) -> Floats:
        """Return the decay's share in each update [n, L]; NaN where it cannot be said."""
        n = len(weight)
        if decays_beside(view):
            # The update is what the decay takes plus what the gradient moves. At right angles to each other their
            # squares add up; a decay that is larger than the update is offset by the gradient, and counts as all of it.
            update = view.tensor_window("update_norm", n)[:, places]
            taken = self._rates(view, places, n) * decay * weight
            moved = np.sqrt(np.maximum(update**2 - taken**2, 0.0))
        else:
            taken = decay * weight
            moved = view.tensor_window("norm", n)[:, places]
        total = taken + moved
        shares: Floats = np.divide(taken, total, out=np.full(total.shape, np.nan), where=total > 0)
        return shares

    def _rates(self, view: View, places: np.ndarray, n: int) -> Floats:
        """Return the learning rates at each of the last `n` tables [n, L]; the present ones where they are not known.

        The highest of all groups is remembered; others are taken to have been in the present proportion to them.
        """
        n = min(n, view.history.tables)
        steps, rates = view.window("step", 512), view.window("lr", 512)
        tables = view.history.table_steps.window(n)[:, 0]
        at = np.clip(np.searchsorted(steps, tables), 0, len(steps) - 1)
        known = (steps[at] == tables) & np.isfinite(rates[at])
        now = np.nan_to_num(rates_of(view)[places])
        leading = leading_rate(view.frame)
        if not leading or not math.isfinite(leading):
            return np.broadcast_to(now, (len(tables), len(places)))
        found: Floats = np.where(known, rates[at], leading)[:, None] / leading * now
        return found

    def _alone(self, view: View, places: np.ndarray, decay: Floats, n: int) -> Floats:
        """Return the fall of the log norm [L] that the decay alone would bring over the last `n` tables."""
        tables = view.history.table_steps.window(n)[:, 0]
        steps = float(tables[-1] - tables[0])
        momentum = np.nan_to_num(numbers_of(view, "momentum")[places])
        boost = 1.0 if decays_beside(view) else 1.0 / np.maximum(1e-3, 1.0 - momentum)
        alone: Floats = np.median(self._rates(view, places, n), axis=0) * decay * boost * steps
        return alone

    def _draft(self, view: View, places: np.ndarray, share: float, shrunk: Floats, decay: float, step: int) -> Draft:
        limits = self.thresholds
        lost = 1 - math.exp(-float(np.median(shrunk)))
        return Draft(
            severity="warning",
            confidence=0.7,
            step=step,
            where=view.layout.pick(places),
            evidence=(
                Evidence("share of the decay in the update, median over matrices", share, limits.share),
                Evidence("share of their size that weights lost", lost, limits.lost),
                Evidence("weight decay", decay),
                Evidence("learning rate", float(rates_of(view)[places[0]])),
            ),
            params={
                "n": len(places),
                "share": 100 * share,
                "lost": 100 * lost,
                "tables": limits.window,
                "decay": decay,
                "lower": float(f"{decay / 10:.1g}"),
                **self._by_rate(view, places, decay),
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
        )

    def _forgetful_draft(self, view: View, places: np.ndarray, share: float, decay: float, taken: float) -> Draft:
        limits = self.thresholds
        taken = min(taken, 1.0)
        return Draft(
            severity="warning",
            confidence=0.65,
            step=int(view.history.table_steps.window(limits.short)[0, 0]),
            where=view.layout.pick(places),
            evidence=(
                Evidence("share of every weight that the decay takes in a step", taken, limits.forgets),
                Evidence("share of the decay in the update, median over matrices", share, limits.share),
                Evidence("weight decay", decay),
                Evidence("learning rate", float(rates_of(view)[places[0]])),
            ),
            params={
                "taken": 100 * taken,
                "memory": max(1, round(1 / taken)),
                "share": 100 * share,
                "tables": limits.short,
                "decay": decay,
                "lr": float(rates_of(view)[places[0]]),
                # A hundredth of a percent per step: a memory of ten thousand steps.
                "lower": float(f"{decay * 1e-4 / taken:.1g}"),
                **self._by_rate(view, places, decay),
                "harm": view.harm.phrase,
                "loss_first": view.loss.first,
                "loss_recent": view.loss.recent,
            },
            variant="forgets",
        )
