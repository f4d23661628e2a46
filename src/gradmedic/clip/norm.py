"""Clipping by the norm of all gradients together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from gradmedic.clip.base import Decision, GradientSummary
from gradmedic.errors import InputError

#: torch.nn.utils.clip_grad_norm_ divides by the norm plus this; kept, so that both give the same weights.
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class GlobalNorm:
    """Scale all gradients so that their joint L2 norm does not exceed the threshold; see `norm`."""

    threshold: float

    def init(self, names: tuple[str, ...]) -> None:
        """There is no state."""

    def update(self, summary: GradientSummary, state: None) -> tuple[Decision, None]:
        """Decide about one step; gradients that are not finite are left alone, NaN never multiplies anything."""
        total = summary.total
        scale = scale_to(self.threshold, total, summary.nonfinite)
        return Decision(scale, (total > self.threshold) & (summary.nonfinite == 0), self.threshold), None


def scale_to(threshold: float, total: torch.Tensor, nonfinite: torch.Tensor) -> torch.Tensor:
    """Return the factor that brings a norm to the threshold.

    Args:
        threshold: largest norm allowed, > 0.
        total: norm of the finite elements, 0-d float64.
        nonfinite: number of the others, 0-d.

    Returns:
        0-d float64, no host sync: exactly 1 below the threshold and where anything is not finite, torch's formula at
        and above it.
    """
    reached = (total >= threshold) & (nonfinite == 0)
    return torch.where(reached, threshold / (total + EPSILON), torch.ones_like(total)).clamp(max=1.0)


def norm(threshold: float) -> GlobalNorm:
    """Clip the gradients' joint L2 norm (Pascanu, Mikolov, Bengio 2013, arXiv:1211.5063, algorithm 1).

    Below the threshold gradients stay bit-identical; above it they are multiplied by `threshold / (norm + 1e-6)`,
    which is torch's formula. Gradients of 1e25 in fp32 are clipped, not zeroed; if any element is NaN or infinite
    nothing is changed, so a sick tensor does not damage the others.

    Args:
        threshold: largest norm allowed, > 0; `math.inf` measures only.

    Returns:
        A transform for `gm.watch(..., transform=...)`.

    Raises:
        InputError: for a threshold that is negative, zero or NaN.

    Example:
        >>> norm(1.0).threshold
        1.0
    """
    return GlobalNorm(check_threshold(threshold, "threshold"))


def check_threshold(value: object, name: str) -> float:
    """Return a norm threshold as a float.

    Raises:
        InputError: if it is not a number > 0.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(f"{name}: expected a number > 0, got {value!r}") from None
    if math.isnan(number) or number <= 0:
        raise InputError(
            f"{name}: expected a number > 0, got {number}; a negative threshold would reverse the gradients and 0 "
            "would erase them. Leave the clip out, or pass math.inf to measure only"
        )
    return number
