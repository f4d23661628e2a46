"""Clipping by value: each element by itself."""

from __future__ import annotations

from dataclasses import dataclass

from gradmedic.clip.base import BaseTransform, Decision, Scope
from gradmedic.clip.operations import Limit
from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.base import check_threshold


@dataclass(frozen=True)
class ValueClip(BaseTransform):
    """Clamp every element to [-limit, limit]; see `value`."""

    limit: float

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        """Every tensor is clipped by itself."""
        return "tensor"

    def update(self, summary: GradientSummary, state: State) -> tuple[Decision, State]:
        """Decide about one step; the largest magnitudes, which are known, tell whether anything will be clamped."""
        largest = summary.norms(float("inf"))
        over = largest > self.limit
        if over.device.type == "cpu":
            positions = [at for at, flag in enumerate(over.tolist()) if flag]
        elif summary.seen is None:
            positions = list(range(len(summary.spec)))
        else:
            positions = [] if summary.gradients is None else summary.gradients.positions
        operations = (Limit(dict.fromkeys(positions, self.limit)),) if positions else ()
        return Decision(operations, over.any()), state


def value(limit: float) -> ValueClip:
    """Clip each gradient element to [-limit, limit].

    The direction of the gradient changes. Elements that are NaN or infinite stay what they are, so that guards and
    GradScaler still see them (`torch.nn.utils.clip_grad_value_` turns an infinity into the limit). Complex gradients
    are clipped by their real and imaginary parts.

    Args:
        limit: largest magnitude allowed, > 0; in true units under a GradScaler.

    Returns:
        A transform.

    Raises:
        InputError: for a limit that is negative, zero or NaN.

    Example:
        >>> value(0.5).limit
        0.5
    """
    return ValueClip(check_threshold(limit, "limit"))
