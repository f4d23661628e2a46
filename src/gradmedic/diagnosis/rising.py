"""Whether a loss that had fallen goes up again, slowly: too little to count as divergence, and no noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmedic.diagnosis.history import SCALAR_STEPS
from gradmedic.diagnosis.view import View

_LEAST = 160
_PARTS = 4
#: Standard errors, and part of the lowest level, by which the last part must lie above the lowest one.
_CERTAIN = 3.0
_RISE = 0.1


def rise_of(view: View) -> dict[str, Any]:
    """Return what the phrase "harm_rising" quotes where the last remembered losses lie above earlier ones.

    Args:
        view: the present; up to 512 losses are remembered, and at least 160 finite ones are asked for.

    Returns:
        "harm", both levels (means) and the steps that each is of; empty where the loss does not go up.
    """
    losses, steps = view.window("loss", SCALAR_STEPS), view.window("step", SCALAR_STEPS)
    if len(losses) < _LEAST or not np.isfinite(losses).all() or view.several_optimizers:
        return {}
    parts, places = np.array_split(losses, _PARTS), np.array_split(steps, _PARTS)
    means = [float(part.mean()) for part in parts]
    low = int(np.argmin(means[:-1]))
    error = math.sqrt(sum(float(parts[at].var(ddof=1)) / len(parts[at]) for at in (low, -1)))
    rise = means[-1] - means[low]
    if rise <= max(_CERTAIN * error, _RISE * abs(means[low])):
        return {}
    return {
        "harm": "@harm_rising",
        "loss_low": means[low],
        "low_from": int(places[low][0]),
        "low_to": int(places[low][-1]),
        "loss_late": means[-1],
        "late_from": int(places[-1][0]),
        "late_to": int(places[-1][-1]),
    }
