"""Whether a step went wrong because of its batch: what jumped before the weights had moved."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmedic.diagnosis.history import SCALAR_STEPS
from gradmedic.diagnosis.view import View

#: Steps before the jump that it is compared with.
_BEFORE = 20
#: A rate this many times the largest before it has jumped itself.
_RATE = 1.5


def jump_before(view: View, step: int, jump: float, calm: int) -> dict[str, Any]:
    """Return what jumped at a step whose weights had not moved much before it, {} for nothing.

    Args:
        step: the first step with a large update: its loss and gradient norm were measured before that update.
        jump: how many times its level before, and its spread, the value must be.
        calm: so many values before it must be known.

    Returns:
        {"what": the name of a phrase for it, "before": its median of the 20 steps before, "jumped": its value}.
    """
    steps = view.window("step", SCALAR_STEPS)
    found = np.flatnonzero(steps == step)
    if not len(found):
        return {}
    at = int(found[-1])
    rates = view.window("lr", SCALAR_STEPS)[max(0, at - _BEFORE) : at + 1]
    if len(rates) and rates[-1] > _RATE * np.nanmax(rates[:-1], initial=0.0):
        return {}  # the rate itself has jumped
    for what, column in (("@loss_of_step", "loss"), ("@norm_of_step", "grad_norm")):
        values = view.window(column, SCALAR_STEPS)
        before = values[max(0, at - _BEFORE) : at]
        before = before[np.isfinite(before)]
        if len(before) < calm or math.isnan(values[at]):
            continue
        level, spread = float(np.median(before)), float(before.max() - before.min())
        if values[at] - level > jump * max(abs(level), spread):
            return {"what": what, "before": level, "jumped": float(values[at])}
    return {}
