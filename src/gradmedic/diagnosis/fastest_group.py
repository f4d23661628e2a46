"""The tensors of the parameter groups with the highest learning rate, where others have a much lower one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.optimizer_facts import rates_of
from gradmedic.diagnosis.view import View

#: Rates within this factor of each other are one rate: the median over all matrices speaks for all.
_APART = 3.0


@dataclass(frozen=True)
class Fastest:
    """Tensors whose rate is far above that of others.

    Attributes:
        held: which tensors [P].
        rate, other: their rate; the lowest one of all groups.
    """

    held: npt.NDArray[np.bool_]
    rate: float
    other: float


def fastest(view: View) -> Fastest | None:
    """Return the tensors of the groups with the highest rate; None where rates are much the same, or not known."""
    rates = view.frame.lrs
    if len(rates) < 2 or not max(rates) > _APART * min(rates):
        return None
    own, top = rates_of(view), max(rates)
    held = own == top
    # Rates that cannot be put down to tensors are all taken to be the first group's.
    return Fastest(held, top, min(rates)) if held.any() and not held.all() else None
