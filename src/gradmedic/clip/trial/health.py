"""Which part of a run is healthy, and which of its steps are spikes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradmedic.clip.thresholds.zscore import MAD_TO_STD
from gradmedic.clip.trial.series import NormSeries
from gradmedic.frame import Array

#: Findings after whose first step the norms say nothing of a healthy run: non-finite values, bad input, a collapsing
#: loss scale, a learning rate that is too high.
BOUNDING = ("GM201", "GM202", "GM204", "GM401")
#: Robust z of the logarithm of a norm above which it is a spike.
SPIKE_Z = 6.0
#: The deviation of the logarithm counts as at least this much: below a factor of exp(6 * 0.1) = 1.8 nothing is a spike.
LEAST_SPREAD = 0.1
WINDOW, LEAST_HISTORY = 128, 16
#: Norms so many times the median, up to the end of the run, are no healthy part of it.
DEPARTURE = 30.0
#: After so many spikes in a row the level has changed, and the history begins anew.
NEW_LEVEL = 10


@dataclass(frozen=True, slots=True)
class Bound:
    """Where the healthy part ends.

    Attributes:
        place: number of leading steps that may be healthy.
        step: index of the first step beyond them; None when all are.
        code: the finding that says so; "" when the norms do.
    """

    place: int
    step: int | None = None
    code: str = ""


def find_bound(series: NormSeries, events: Iterable[Mapping[str, Any]]) -> Bound:
    """Return where the healthy part ends: at a finding that lasts, or where the norms leave for good.

    Args:
        series: the norms.
        events: of the run; findings among them count when they are warnings or worse and of this optimizer or of none.
    """
    bounds = [Bound(_departure(series))]
    for event in events:
        if event.get("kind") != "finding":
            continue
        finding = event.get("finding") or {}
        whose, code = finding.get("optimizer") or "", finding.get("code")
        if whose not in ("", series.optimizer) or code not in BOUNDING or finding.get("severity") == "info":
            continue
        place = _place_of(series, int(finding.get("step", 0)))
        if _lasts(series, place, str(code)):
            bounds.append(Bound(place, code=str(code)))
    least = min(bounds, key=lambda bound: (bound.place, bound.code == ""))
    if least.place >= len(series):
        return Bound(len(series))
    return Bound(least.place, int(series.step[least.place]), least.code)


def _place_of(series: NormSeries, step: int) -> int:
    """Return the place of the first step with this index or a later one; a restart that goes back counts once."""
    later = np.flatnonzero(series.step >= step)
    return int(later[0]) if len(later) else len(series)


def _lasts(series: NormSeries, place: int, code: str) -> bool:
    """Whether a fault went on: a NaN that the scaler skipped is over at the next step, a learning rate is not."""
    if code == "GM401":
        return True
    after = series.usable[place:]
    return not len(after) or float(after.mean()) < 0.5


def _departure(series: NormSeries) -> int:
    """Return the place from which on every step has a norm far above all others, or none that is finite."""
    usable = series.usable
    if not usable.any():
        return len(series)
    logs = np.log(np.where(usable, series.norm, 1.0))
    middle, spread = _center(logs[usable])
    away = (usable & (logs > middle + max(SPIKE_Z * spread, np.log(DEPARTURE)))) | (
        series.known & ~np.isfinite(series.norm)
    )
    inside = np.flatnonzero(~away & (usable | ~series.known))
    begins = int(inside[-1]) + 1 if len(inside) else 0
    return begins if len(series) - begins >= NEW_LEVEL else len(series)


def spike_levels(norms: Array) -> tuple[Array, Array]:
    """Return which norms are spikes, and the level above which each would be one.

    Args:
        norms: finite and > 0, [S], in the order of time.

    Returns:
        (bool [S], float64 [S]; infinite while there is too little history). A norm is a spike when its logarithm is
        more than 6 robust deviations above the median of the last 128 that were none.
    """
    history: deque[float] = deque(maxlen=WINDOW)
    flags, levels = np.zeros(len(norms), bool), np.full(len(norms), np.inf)
    in_a_row: list[float] = []
    for at, log in enumerate(np.log(norms).tolist()):
        if len(history) >= LEAST_HISTORY:
            middle, spread = _center(np.array(history))
            levels[at] = np.exp(middle + SPIKE_Z * spread)
            flags[at] = log > middle + SPIKE_Z * spread
        if not flags[at]:
            in_a_row.clear()
            history.append(log)
            continue
        in_a_row.append(log)
        if len(in_a_row) > NEW_LEVEL:
            history.clear()
            history.extend(in_a_row)
            flags[at - len(in_a_row) + 1 : at + 1] = False
            in_a_row.clear()
    return flags, levels


def _center(logs: Array) -> tuple[float, float]:
    middle = float(np.median(logs))
    return middle, max(float(np.median(np.abs(logs - middle))) * MAD_TO_STD, LEAST_SPREAD)
