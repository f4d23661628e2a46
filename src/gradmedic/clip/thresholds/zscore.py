"""A threshold so many standard deviations above the usual norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.base import Adaptive, check_positive
from gradmedic.clip.thresholds.history import mean_and_std, median_and_mad, new_ring, push
from gradmedic.clip.thresholds.quantiles import check_window, with_ring

#: Makes the median absolute deviation estimate the standard deviation of a normal distribution.
MAD_TO_STD = 1.4826
#: Norms that hardly vary make any rise an outlier: the deviation counts as at least this share of the usual norm.
LEAST_DEVIATION = 0.01


@dataclass(frozen=True)
class ZScore(Adaptive):
    """The usual norm plus `z` deviations; see `zscore`."""

    z: float
    window: int
    min_samples: int
    fallback: float
    robust: bool

    def begin(self, size: tuple[int, ...], device: torch.device) -> State:
        """Return an empty history."""
        return State(new_ring(self.window, size, device))

    def value(self, signal: torch.Tensor, state: State, summary: GradientSummary) -> torch.Tensor:
        """Return the threshold; the fallback until there are `min_samples` norms."""
        ring = state.shared or state.by_tensor
        middle, spread = deviations(ring, robust=self.robust)
        return torch.where(ring["count"] >= self.min_samples, middle + self.z * spread, self.fallback)

    def observe(self, signal: torch.Tensor, kept: torch.Tensor, valid: torch.Tensor, state: State) -> State:
        """Remember the norm: before clipping where the baseline is robust, after it otherwise, since one spike among
        a hundred norms would widen the standard deviation for the hundred steps that follow. Norms of 0 do not count.
        """
        ring = state.shared or state.by_tensor
        return with_ring(state, push(ring, signal if self.robust else kept, valid & (signal > 0)))


def deviations(ring: dict[str, torch.Tensor], *, robust: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the usual value and the deviation of what a ring holds, the latter never below a share of the former."""
    if robust:
        middle, spread = median_and_mad(ring)
        spread = spread * MAD_TO_STD
    else:
        middle, spread = mean_and_std(ring)
    return middle, torch.maximum(spread, middle.abs() * LEAST_DEVIATION)


def zscore(
    z: float = 3.0, window: int = 100, *, min_samples: int | None = None, fallback: float = 1.0, robust: bool = False
) -> ZScore:
    """Clip at the mean of the last norms plus `z` standard deviations (unbiased).

    The norm that is judged is not among them: counted in, its z could not exceed (n - 1) / sqrt(n).

    Args:
        z: number of deviations, > 0.
        window: how many norms are remembered.
        min_samples: how many are needed before they count; 25, or the window if that is less, by default.
        fallback: the threshold until then, > 0; `math.inf` for none.
        robust: median and median absolute deviation (times 1.4826) in place of mean and standard deviation.

    Returns:
        A threshold for `norm`.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> zscore(2.5, robust=True).z
        2.5
    """
    needed = check_window(window, min_samples, 25)
    return ZScore(check_positive(z, "z"), window, needed, fallback, robust)
