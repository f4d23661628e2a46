"""The spike clip of SPAM: elements that are huge against their own second moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradmedic.clip.base import BaseTransform, Decision, Scope
from gradmedic.clip.operations import MomentLimit
from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.base import check_count, check_positive


@dataclass(frozen=True)
class SpikeClip(BaseTransform):
    """Clamp elements by the optimizer's second moment; see `spike_clip`."""

    theta: float
    grace: int

    needs: ClassVar[frozenset[str]] = frozenset({"second_moment"})

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        """Every tensor is clipped by itself."""
        return "tensor"

    def update(self, summary: GradientSummary, state: State) -> tuple[Decision, State]:
        """Decide about one step; what any element exceeds its limit by is not known before it is applied."""
        if summary.gradients is None or summary.step < self.grace:
            return Decision(), state
        moments: dict[int, torch.Tensor] = {}
        clipped = torch.zeros((), dtype=torch.bool, device=summary.norm.device)
        for at in summary.gradients.positions:
            moment = summary.gradients.second_moment(at)
            if moment is None:
                continue
            moments[at] = moment
            over = _exceeds(summary.gradients.values(at), moment, self.theta)
            clipped = clipped | over.any().to(clipped.device)
        clipped = summary.gradients.any_rank(clipped)
        return Decision((MomentLimit(self.theta, moments),) if moments else (), clipped), state


def _exceeds(values: torch.Tensor, moment: torch.Tensor, theta: float) -> torch.Tensor:
    """Return where an element will be clamped; complex ones are looked at by their parts, as Adam treats them."""
    if values.is_complex():
        values, moment = torch.view_as_real(values.resolve_conj()), torch.view_as_real(moment)
    square = values.square()
    return (moment > 0) & (square > theta * moment.double()) & torch.isfinite(square)


def spike_clip(theta: float = 5000.0, grace: int = 20) -> SpikeClip:
    """Clamp elements with g^2 > theta v to sign(g) sqrt(theta v), v being Adam's second moment.

    Only the clip of SPAM (arXiv:2501.06842, section 3): its resets of the moments every 500 steps, each with a warm-up
    of the learning rate, are the optimizer's affair. Where v is 0, as for an embedding row that was never used, nothing
    is clamped: there the public code freezes the element. (Another public version clamps a copy, and hence nothing.)

    Args:
        theta: largest g^2 / v, > 0; 5000 allows 70 times the usual magnitude.
        grace: steps at the beginning that are left alone, v being too small then.

    Returns:
        A transform, for optimizers that keep `exp_avg_sq` (Adam, AdamW, NAdam, RAdam, SparseAdam; not Adamax).

    Example:
        >>> spike_clip().theta
        5000.0
    """
    check_count(grace, "grace", 0)
    return SpikeClip(check_positive(theta, "theta"), grace)
