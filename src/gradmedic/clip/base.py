"""What a transform is: a pure pair of functions that decides how gradients are scaled.

After optax: `init(spec) -> state` and `update(summary, state) -> (decision, state)`. A transform sees norms, never
gradients; its vectors live on the gradients' device and nothing is read back to the host. What it decides is carried
out by `gradmedic.clip.apply`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True, slots=True)
class GradientSummary:
    """What a transform may know of a step.

    Attributes:
        names: the tensors' names, N.
        norm: L2 norms of the gradients as they are now, float64 [N]; over the finite elements.
        nonfinite: number of NaN and infinite elements, 0-d.
        step: index of the step, from 0.
    """

    names: tuple[str, ...]
    norm: torch.Tensor
    nonfinite: torch.Tensor
    step: int

    @property
    def total(self) -> torch.Tensor:
        """L2 norm of everything, 0-d float64; scaled so that float64's extremes neither overflow nor vanish."""
        if not self.norm.numel():
            return torch.zeros((), dtype=torch.float64)
        largest = self.norm.max()
        divisor = torch.where(largest > 0, largest, torch.ones_like(largest))
        return divisor * (self.norm / divisor).square().sum().sqrt()


@dataclass(frozen=True, slots=True)
class Decision:
    """What a transform has decided.

    Attributes:
        scale: factor for all gradients, 0-d float64 on the gradients' device; exactly 1 leaves them bit-identical.
        clipped: 0-d bool: whether the threshold was exceeded.
        threshold: the threshold in force.
    """

    scale: torch.Tensor
    clipped: torch.Tensor
    threshold: float


class Transform(Protocol):
    """A pair of pure functions; see the module's text."""

    def init(self, names: tuple[str, ...]) -> Any:
        """Return the first state for these tensors."""
        ...

    def update(self, summary: GradientSummary, state: Any) -> tuple[Decision, Any]:
        """Decide about one step; returns the decision and the next state. No host synchronisation."""
        ...
