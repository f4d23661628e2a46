"""Whether a step went wrong because of its batch: what jumped before the weights had moved."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmedic.diagnosis.history import SCALAR_STEPS
from gradmedic.diagnosis.view import View

#: Steps before the jump that it is compared with.
_BEFORE = 20
#: One loss that lies this many times the range of those before above them has jumped, and not grown.
_AT_ONCE = 5.0
#: Where the losses after it lie higher by this part of its rise, it grows on.
_GROWN = 0.5
#: Steps back from where a loss is seen diverged (a median of three) in which it may have left its usual range.
_BACK = 4
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
    if _rate_jumped(view, at):
        return {}
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


def first_high(view: View, step: int) -> int:
    """Return the first of the few steps up to this one whose loss lies above all of the 20 before, by their range."""
    steps, losses = view.window("step", _BEFORE + _BACK), view.window("loss", _BEFORE + _BACK)
    for at in range(max(1, len(steps) - _BACK), len(steps)):
        before = losses[max(0, at - _BEFORE) : at]
        before = before[np.isfinite(before)]
        if len(before) and losses[at] > 2 * before.max() - before.min():
            return int(steps[at])
    return step


def rises_at_once(view: View, step: int) -> bool:
    """Whether the loss of a step jumped far out of the range of those before and did not grow on, at an unchanged rate.

    A step moves the weights a little, and the loss with them: what grows by steps grows over several. Other data show
    in one loss, which is measured before its batch has changed anything.
    """
    found = np.flatnonzero(view.window("step", SCALAR_STEPS) == step)
    if not len(found) or _rate_jumped(view, int(found[-1])):
        return False
    at = int(found[-1])
    losses = view.window("loss", SCALAR_STEPS)
    before = losses[max(0, at - _BEFORE) : at]
    before = before[np.isfinite(before)]
    if len(before) < _BEFORE // 2:
        return False
    rise = losses[at] - before.max()
    return bool(rise > _AT_ONCE * (before.max() - before.min()) and losses[at:].max() < losses[at] + _GROWN * rise)


def _rate_jumped(view: View, at: int) -> bool:
    rates = view.window("lr", SCALAR_STEPS)[max(0, at - _BEFORE) : at + 1]
    return bool(len(rates)) and bool(rates[-1] > _RATE * np.nanmax(rates[:-1], initial=0.0))
