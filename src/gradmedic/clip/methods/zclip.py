"""ZClip: clipping by the z-score of the norm against running mean and variance."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradmedic.clip.norm import NormClip
from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.base import Adaptive, check_count, check_positive, check_share
from gradmedic.clip.thresholds.zscore import LEAST_DEVIATION


@dataclass(frozen=True)
class ZClipThreshold(Adaptive):
    """The threshold of ZClip; see `zclip`."""

    z: float
    alpha: float
    warmup: int
    fallback: float

    def begin(self, size: tuple[int, ...], device: torch.device) -> State:
        """Return an empty warm-up."""
        zeros = torch.zeros(size, dtype=torch.float64, device=device)
        return State(
            {
                "count": torch.zeros(size, dtype=torch.int64, device=device),
                "mean": zeros,
                "variance": zeros.clone(),
            }
        )

    def value(self, signal: torch.Tensor, state: State, summary: GradientSummary) -> torch.Tensor:
        """Return mean + z^2 std / z_now for a norm of z-score z_now > z, else infinity; the fallback in warm-up."""
        held = state.shared or state.by_tensor
        mean, count = held["mean"], held["count"]
        std = torch.maximum(held["variance"].clamp(min=0).sqrt(), mean * LEAST_DEVIATION)
        now = (signal - mean) / (std + 1e-6)
        spike = mean + self.z * self.z * std / now
        limit = torch.where(now > self.z, spike, torch.full_like(signal, torch.inf))
        return torch.where(count >= self.warmup, limit, self.fallback)

    def observe(self, signal: torch.Tensor, kept: torch.Tensor, valid: torch.Tensor, state: State) -> State:
        """Take in the raw norm during the warm-up (mean and population variance, after Welford), later the one kept."""
        held = state.shared or state.by_tensor
        count, mean, variance = held["count"], held["mean"], held["variance"]
        warm = count < self.warmup
        # A norm of 0 (a loss that is masked so far) is no part of the first baseline: of nothing but such norms, it
        # would erase all that follow.
        valid = valid & ~(warm & (signal == 0))
        grown = count + valid
        # Welford's update of mean and population variance.
        first_mean = mean + (signal - mean) / (count + 1)
        first_variance = (variance * count + (signal - mean) * (signal - first_mean)) / (count + 1)
        later_mean = self.alpha * mean + (1 - self.alpha) * kept
        # The deviation is from the new mean, as in the public code; the paper does not say which.
        later_variance = self.alpha * variance + (1 - self.alpha) * (kept - later_mean).square()
        fresh = {
            "count": grown,
            "mean": torch.where(valid, torch.where(warm, first_mean, later_mean), mean),
            "variance": torch.where(valid, torch.where(warm, first_variance, later_variance), variance),
        }
        return State(by_tensor=fresh) if state.by_tensor else State(fresh)


def zclip(z: float = 2.5, alpha: float = 0.97, warmup: int = 25, *, fallback: float = 1.0) -> NormClip:
    """Clip norms whose z-score exceeds `z`, the more the larger they are (ZClip, arXiv:2504.02507, equations 4 to 8).

    A norm of z-score s > z is scaled to mean + z^2 std / s: at s = z nothing changes, and of a huge spike little more
    than the mean is left. Mean and variance are then updated with the norm that was kept. Unlike the public code, a NaN
    or an infinity changes no state (there it switches ZClip off for good), the deviation counts as at least 1 % of the
    mean (there norms that hardly vary make every rise a spike), no second, fixed clip at 1.0 is always on, and the
    state is saved.

    Args:
        z: z-score above which is clipped, > 0.
        alpha: decay of mean and variance, between 0 and 1.
        warmup: how many norms make the first mean and variance.
        fallback: threshold until then, > 0; `math.inf` for none.

    Returns:
        A transform.

    Example:
        >>> zclip().threshold.z
        2.5
    """
    check_count(warmup, "warmup", 2)
    return NormClip(ZClipThreshold(check_positive(z, "z"), check_share(alpha, "alpha"), warmup, fallback))
