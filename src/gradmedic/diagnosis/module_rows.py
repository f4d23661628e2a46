"""What rules remember of sampled module rows: the last of each series, by optimizer."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from gradmedic.diagnosis.finding import Finding
from gradmedic.diagnosis.history import is_nonfinite
from gradmedic.diagnosis.view import View

#: Rows of one series that are remembered, and series of one optimizer.
LENGTH = 32
MAX_SERIES = 512
#: Part of the loss of the best constant prediction below which something has been learned; of what lies above the
#: loss of a perfect prediction where targets are soft.
LEARNED = 0.8
_JUDGED = 5


@dataclass(frozen=True, slots=True)
class SampledRow:
    """One row of `Frame.modules`, and the step that it belongs to."""

    step: int
    row: Mapping[str, Any]
    loss: float | None = None
    """The loss of the whole step, where it is known."""

    def get(self, key: str) -> float:
        """Return a number, from the columns or from `extra`; NaN where it was not measured."""
        value = self.row.get(key)
        if value is None:
            value = (self.row.get("extra") or {}).get(key)
        return float(value) if isinstance(value, (int, float)) else math.nan

    @property
    def module(self) -> str:
        """The module's name."""
        return str(self.row["module"])

    @property
    def leaf(self) -> str:
        """Which tensor, operation or kind of loss."""
        return str(self.row.get("leaf", ""))


Series = deque[SampledRow]
_Key = tuple[str, str, int, str]


class RowMemory:
    """Remembers the rows of some kinds.

    Rows of steps that are NaN or infinite are left out after the first such step: what NaN does to activity,
    predictions and inputs is no fault of its own.

    Args:
        kinds: values of `what` that are remembered.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self._kinds = frozenset(kinds)
        self._series: dict[str, dict[_Key, Series]] = {}

    def take(self, view: View) -> bool:
        """Take the rows of a frame; returns whether a rule should look: when there were any, and at the end."""
        if view.final:  # the last frame comes a second time
            return bool(self._series.get(view.frame.optimizer))
        rows = [row for row in view.frame.modules if row.get("what") in self._kinds]
        if rows and _lost(view):
            return False
        known = self._series.setdefault(view.frame.optimizer, {}) if rows else {}
        for row in rows:
            key = (str(row["what"]), str(row["module"]), int(row.get("call") or 0), str(row.get("leaf", "")))
            if key in known or len(known) < MAX_SERIES:
                series = known.setdefault(key, _unnamed(known, key) or deque(maxlen=LENGTH))
                series.append(SampledRow(view.frame.step, row, view.frame.loss))
        return bool(rows)

    def series(self, view: View, what: str) -> Iterator[Series]:
        """Return all series of one kind for the view's optimizer, in the order in which they were first seen."""
        for key, series in self._series.get(view.frame.optimizer, {}).items():
            if key[0] == what:
                yield series

    def learned(self, view: View, finding: Finding) -> bool:
        """Whether the loss that a finding speaks of has fallen well below that of a constant since.

        The mean of the last five samples is held against 80 % of the constant's loss: the loss of one batch varies
        with its share of rare classes. Where it is all of a step's loss, the last 40 steps say so sooner. Both are
        taken above the loss of a perfect prediction, which soft targets keep from zero.

        Args:
            view: the present.
            finding: names the loss's module in `where`.
        """
        series = self.spoken_of(view, finding)
        if series is None:
            return False
        losses, constant = recent(series, "loss", _JUDGED), recent(series, "baseline", _JUDGED)
        if len(losses) < 3 or not constant:
            return False
        floor = fmean(recent(series, "floor", _JUDGED) or [0.0])
        # Not the median: where one class is rare, the loss is small in most steps and large in a few.
        late = view.window("loss", 40)
        now = float(late.mean()) if is_whole(series[-1]) and np.isfinite(late).all() else math.inf
        return min(fmean(losses), now) < floor + LEARNED * (fmean(constant) - floor)

    def spoken_of(self, view: View, finding: Finding) -> Series | None:
        """Return the loss that a finding names in `where`; None where it is of another optimizer, or not known."""
        if finding.optimizer != view.frame.optimizer:
            return None
        module = finding.where[0] if finding.where else ""
        return next((series for series in self.series(view, "loss") if series[-1].module == module), None)


def _lost(view: View) -> bool:
    """Whether this step is NaN or infinite, and not the first one that is."""
    first = view.history.nonfinite_step
    return first is not None and view.frame.step > first and is_nonfinite(view.frame)


def _unnamed(known: dict[_Key, Series], key: _Key) -> Series | None:
    """Return, no longer under its old key, the row of the same loss at step 0, where modules had no names yet.

    The models of an unmodified script are looked for at its first step.
    """
    what, module, call, leaf = key
    old = known.get((what, "", call, leaf)) if what == "loss" and module else None
    return known.pop((what, "", call, leaf)) if old and old[-1].step == 0 else None


def is_whole(row: SampledRow) -> bool:
    """Whether the loss of a row is the loss of its step, and not one of several terms, or of several passes."""
    return row.loss is not None and math.isclose(row.loss, row.get("loss"), rel_tol=1e-3)


def recent(series: Sequence[SampledRow], key: str, n: int) -> list[float]:
    """Return the last `n` values of a number, finite ones only."""
    values = (row.get(key) for row in list(series)[-n:])
    return [value for value in values if math.isfinite(value)]


def no_better_than_constant(series: Sequence[SampledRow], n: int, share: float) -> float | None:
    """Return loss over the loss of the best constant prediction, where the last `n` samples are no better than it.

    Args:
        series: rows of `what` "loss".
        n: samples whose median is judged.
        share: part of the constant's loss from which on it counts as no better.

    Returns:
        The median ratio; None where it is smaller, or too few are known.
    """
    ratios = [ratio for ratio, _ in _ratios(series, n)]
    if len(ratios) < n:
        return None
    ratio = median(ratios)
    return ratio if ratio >= share else None


def median_row(series: Sequence[SampledRow], n: int) -> SampledRow:
    """Return that of the last `n` samples whose loss is the (lower) median beside the best constant prediction's.

    It is the one to quote for `no_better_than_constant`: the last sample may well be better than the constant.
    """
    rows = sorted(_ratios(series, n), key=lambda entry: entry[0])
    return rows[(len(rows) - 1) // 2][1] if rows else series[-1]


def _ratios(series: Sequence[SampledRow], n: int) -> list[tuple[float, SampledRow]]:
    rows = [row for row in list(series)[-n:] if row.get("baseline") > 0]
    ratios = [(row.get("loss") / row.get("baseline"), row) for row in rows]
    return [(ratio, row) for ratio, row in ratios if math.isfinite(ratio)]
