"""Raising gradients that have all but vanished."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from gradmedic.clip.base import BaseTransform, Decision, Scope
from gradmedic.clip.operations import Scale
from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.base import check_positive
from gradmedic.errors import InputError

BoostPer = Literal["model", "tensor"]


@dataclass(frozen=True)
class Boost(BaseTransform):
    """Multiply gradients whose norm is too small; see `boost`."""

    min_norm: float
    max_factor: float
    per: BoostPer = "tensor"

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        """The joint norm needs all gradients at once."""
        return "model" if self.per == "model" else "tensor"

    def update(self, summary: GradientSummary, state: State) -> tuple[Decision, State]:
        """Decide about one step; what is exactly zero or not finite is left alone."""
        whole = self.per == "model"
        signal, sick = summary.joint(2.0) if whole else (summary.norm, summary.nonfinite)
        low = (signal > 0) & (signal < self.min_norm) & (sick == 0)
        factor = torch.where(low, (self.min_norm / signal).clamp(max=self.max_factor), torch.ones_like(signal))
        return Decision((Scale(factor),)), state


def boost(min_norm: float, max_factor: float = 10.0, *, per: BoostPer = "tensor") -> Boost:
    """Raise gradients whose norm is below `min_norm` to it, by at most `max_factor`.

    A stopgap for layers that hardly learn, best used with `layers` on the few that need it. It undoes nothing that has
    made the gradients vanish, and under Adam, which divides by the gradients' own size, it changes next to nothing.

    Args:
        min_norm: norm below which gradients are raised, > 0.
        max_factor: largest factor, >= 1.
        per: "tensor": each by its own norm; "model": all by their joint norm.

    Returns:
        A transform.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> boost(1e-3, max_factor=5.0).max_factor
        5.0
    """
    if per not in get_args(BoostPer):
        raise InputError(f"per: expected one of {', '.join(get_args(BoostPer))}, got {per!r}")
    if check_positive(max_factor, "max_factor") < 1:
        raise InputError(f"max_factor: expected a number >= 1, got {max_factor!r}; to shrink gradients use clip.norm")
    return Boost(check_positive(min_norm, "min_norm"), float(max_factor), per)
