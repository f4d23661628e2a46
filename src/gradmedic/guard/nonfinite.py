"""Skipping steps whose gradients are not finite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradmedic.clip.base import BaseTransform, Decision, Halt, Reason
from gradmedic.clip.spec import Spec
from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.base import check_count
from gradmedic.stats.transfer import moved


@dataclass(frozen=True)
class SkipNonfinite(BaseTransform):
    """Skip steps with NaN or infinite gradients or loss; see `skip_nonfinite`."""

    max_consecutive: int

    may_skip: ClassVar[bool] = True

    def init(self, spec: Spec) -> State:
        """Return a counter."""
        return State({"consecutive": torch.zeros((), dtype=torch.int64, device=spec.device)})

    def update(self, summary: GradientSummary, state: State) -> tuple[Decision, State]:
        """Decide about one step."""
        sick = ~summary.finite
        if summary.loss is not None:
            sick = sick | ~torch.isfinite(moved(summary.loss, sick.device))
        count = torch.where(sick, state.shared["consecutive"] + 1, 0)
        halt = Halt(
            count > self.max_consecutive,
            f"more than {self.max_consecutive} steps in a row had non-finite gradients or loss",
        )
        return Decision(skips=(Reason(sick, "non-finite gradients or loss"),), halts=(halt,)), State(
            {"consecutive": count}
        )

    def settle(self, before: State, after: State, skipped: torch.Tensor) -> State:
        """The counter goes on counting skipped steps."""
        return after


def skip_nonfinite(max_consecutive: int = 20) -> SkipNonfinite:
    """Skip every step whose gradients or loss are NaN or infinite, and end training when they come in a row.

    A true skip: weights, moments, step counters and decay stay as they are.

    Args:
        max_consecutive: how many such steps in a row are borne; one more raises `TrainingHalted`.

    Returns:
        A transform.

    Raises:
        InputError: for a negative number.

    Example:
        >>> skip_nonfinite(5).max_consecutive
        5
    """
    return SkipNonfinite(check_count(max_consecutive, "max_consecutive", 0))
