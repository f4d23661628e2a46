"""What rules remember of sampled module rows: the last of each series, by optimizer."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from gradmedic.diagnosis.finding import Finding
from gradmedic.diagnosis.view import View

#: Rows of one series that are remembered, and series of one optimizer.
LENGTH = 32
MAX_SERIES = 512
#: Part of the loss of the best constant prediction below which something has been learned.
LEARNED = 0.8
_JUDGED = 5


@dataclass(frozen=True, slots=True)
class SampledRow:
    """One row of `Frame.modules`, and the step that it belongs to."""

    step: int
    row: Mapping[str, Any]

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
        known = self._series.setdefault(view.frame.optimizer, {}) if rows else {}
        for row in rows:
            key = (str(row["what"]), str(row["module"]), int(row.get("call") or 0), str(row.get("leaf", "")))
            if key in known or len(known) < MAX_SERIES:
                known.setdefault(key, deque(maxlen=LENGTH)).append(SampledRow(view.frame.step, row))
        return bool(rows)

    def series(self, view: View, what: str) -> Iterator[Series]:
        """Return all series of one kind for the view's optimizer, in the order in which they were first seen."""
        for key, series in self._series.get(view.frame.optimizer, {}).items():
            if key[0] == what:
                yield series

    def learned(self, view: View, finding: Finding) -> bool:
        """Whether the loss that a finding speaks of has fallen well below that of a constant since.

        The mean of the last five samples is held against 80 % of the constant's loss: the loss of one batch varies
        with its share of rare classes.

        Args:
            view: the present.
            finding: names the loss's module in `where`.
        """
        if finding.optimizer != view.frame.optimizer:
            return False
        for series in self.series(view, "loss"):
            if series[-1].module == (finding.where[0] if finding.where else ""):
                losses, constant = recent(series, "loss", _JUDGED), recent(series, "baseline", _JUDGED)
                return len(losses) >= 3 and bool(constant) and fmean(losses) < LEARNED * fmean(constant)
        return False


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
    ratios = [row.get("loss") / row.get("baseline") for row in list(series)[-n:] if row.get("baseline") > 0]
    ratios = [ratio for ratio in ratios if math.isfinite(ratio)]
    if len(ratios) < n:
        return None
    ratio = median(ratios)
    return ratio if ratio >= share else None
