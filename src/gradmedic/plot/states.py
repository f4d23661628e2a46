"""What can stand in the place of a number: each is something else, and is drawn as such."""

from __future__ import annotations

import numpy as np

from gradmedic.frame import NONE, NOT_VISIBLE
from gradmedic.plot import style
from gradmedic.record.arrays import Array

#: In the order of precedence among the tensors of a layer; NUMBER is a measured number other than zero.
NUMBER, NOT_FINITE, ZERO, NO_GRADIENT, UNUSED, HIDDEN, FROZEN, ABSENT = range(8)

#: State -> (key of its words, colour, marker).
LOOKS = {
    NOT_FINITE: ("nonfinite", style.NONFINITE, "x"),
    ZERO: ("zero", style.ZERO, "o"),
    NO_GRADIENT: ("none", style.NO_GRADIENT, "_"),
    UNUSED: ("unused", "#d9a441", "D"),
    HIDDEN: ("not_visible", "#8fb0a9", "s"),
    FROZEN: ("frozen", "#a8c4e0", "*"),
    ABSENT: ("absent", style.ABSENT, "."),
}

#: State of a tensor as a whole -> state of a cell that has no row in the record.
_WHOLE = {"frozen": FROZEN, "unused": UNUSED, "not visible": HIDDEN, "no gradient": NO_GRADIENT}


def cell_states(status: Array, broken: Array, whole: list[str]) -> Array:
    """Return the state of each tensor at each step, before its value is looked at.

    Args:
        status: the record's `status` [S, P], NaN where it has no row.
        broken: number of non-finite elements [S, P], NaN where it has no row.
        whole: state of each tensor over the run [P], as `gradmedic.report.views.order` names it.

    Returns:
        uint8 [S, P]; NUMBER where a gradient was measured, zero or not.
    """
    states = np.full(status.shape, NUMBER, dtype=np.uint8)
    states[status == NONE] = NO_GRADIENT
    states[status == NOT_VISIBLE] = HIDDEN
    states[broken > 0] = NOT_FINITE
    for at, state in enumerate(whole):
        states[np.isnan(status[:, at]), at] = _WHOLE.get(state, ABSENT)
        if state == "unused":
            states[states[:, at] == NO_GRADIENT, at] = UNUSED
    return states


def joined_states(states: Array, starts: Array) -> Array:
    """Return the states of layers [S, L] from those of their tensors [S, P].

    Args:
        states: uint8 [S, P], the tensors of a layer side by side.
        starts: where each layer begins [L].

    Returns:
        NOT_FINITE where a tensor is, else NUMBER where one has a number, else the first state that one has.
    """
    lowest: Array = np.minimum.reduceat(states, starts, axis=1)
    any_broken = np.logical_or.reduceat(states == NOT_FINITE, starts, axis=1)
    lowest[any_broken] = NOT_FINITE
    return lowest
