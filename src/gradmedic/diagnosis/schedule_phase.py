"""Where a run is in its schedule: warming up, decaying, or at its usual rate."""

from __future__ import annotations

import numpy as np

from gradmedic.diagnosis.view import View

#: A rate that grew by more than this over the window is being warmed up.
_RISING = 1.05
#: A rate below this part of its peak is at the end of a decay.
_DECAYED = 0.1


def at_usual_rate(view: View, n: int) -> bool:
    """Whether the learning rate over the last `n` steps was neither warming up nor decayed; False where unknown."""
    rates = view.window("lr", n)
    rates = rates[np.isfinite(rates)]
    if not len(rates) or rates[-1] <= 0:
        return False
    rising = rates[-1] > _RISING * rates[0]
    return bool(not rising and rates[-1] >= _DECAYED * view.history.peak_lr)


def clipped_share(view: View, n: int) -> float:
    """Return the share of the last `n` steps that were clipped."""
    clipped = view.window("clipped", n)
    return float(np.nanmean(clipped)) if len(clipped) else 0.0
