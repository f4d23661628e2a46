"""Losses of soft targets: not even a perfect prediction brings them below the targets' own entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from gradmedic.diagnosis.module_rows import SampledRow, recent

#: Samples whose mean is held against the constant's loss, and how many of them there must be.
_JUDGED = 5
_LEAST = 3
#: Part of what can be gained at all (the constant's loss less the floor) that is more than what sampling varies by.
_GAIN = 0.05
#: Standard errors of a mean beyond which it is no scatter.
_CERTAIN = 2.0


def gain_in_reach(series: Sequence[SampledRow]) -> float | None:
    """Return by how much a perfect prediction beats the best constant one; None where targets are not soft.

    Args:
        series: rows of `what` "loss".
    """
    floors, constants = recent(series, "floor", _JUDGED), recent(series, "baseline", _JUDGED)
    if not floors or not constants or not 0 < fmean(floors) < fmean(constants):
        return None
    return fmean(constants) - fmean(floors)


def still_gains(series: Sequence[SampledRow], n: int) -> bool:
    """Whether the loss of soft targets fell over the last `n` samples, or the last one beats the constant already.

    Such a loss comes down from above to that of a constant and goes on: being there once is no sign.
    """
    reach = gain_in_reach(series)
    losses, constants = recent(series, "loss", n), recent(series, "baseline", n)
    if reach is None or not losses or not constants:
        return False
    return losses[0] - losses[-1] > _GAIN * reach or constants[-1] - losses[-1] > _GAIN * reach


def has_gained(series: Sequence[SampledRow]) -> bool:
    """Whether the mean of the last samples lies below the constant's loss, by more than their scatter."""
    reach = gain_in_reach(series)
    losses, constants = recent(series, "loss", _JUDGED), recent(series, "baseline", _JUDGED)
    if reach is None or len(losses) < _LEAST:
        return False
    error = stdev(losses) / math.sqrt(len(losses))
    return fmean(constants) - fmean(losses) > max(_GAIN * reach, _CERTAIN * error)
