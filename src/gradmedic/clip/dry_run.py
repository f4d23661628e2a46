"""Trying a transform out without letting it act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gradmedic.clip.answers import ask
from gradmedic.clip.base import BaseTransform, Decision, Scope, needs_of, scope_of, settle
from gradmedic.clip.chain import as_transform
from gradmedic.clip.spec import Spec
from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary


@dataclass(frozen=True)
class DryRun(BaseTransform):
    """Note what a transform would do, and do nothing; see `dry_run`."""

    transform: Any

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        """That of the transform."""
        return scope_of(self.transform)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What the transform needs."""
        return needs_of(self.transform)

    def init(self, spec: Spec) -> State:
        """Return the transform's first state."""
        state: State = self.transform.init(spec)
        return state

    def update(self, summary: GradientSummary, state: State) -> tuple[Decision, State]:
        """Decide, and turn the decision into numbers for the record."""
        decision, after = ask(self.transform, summary, state)
        skip = decision.skip
        after = settle(self.transform, state, after, skip)
        one, zero = torch.ones_like(summary.total), torch.zeros_like(summary.total)
        total = summary.total
        kept = summary.after(decision.operations).total
        notes = {
            "dry_run.scale": torch.where(total > 0, kept / torch.where(total > 0, total, one), one),
            "dry_run.clipped": zero if decision.clipped is None else decision.clipped.double(),
            "dry_run.skipped": zero if skip is None else skip.double(),
        }
        if decision.threshold is not None:
            notes["dry_run.threshold"] = decision.threshold
        return Decision(notes=notes), after

    def settle(self, before: State, after: State, skipped: torch.Tensor) -> State:
        """Let the transform settle."""
        return settle(self.transform, before, after, skipped)


def dry_run(transform: Any) -> DryRun:
    """Report what a transform would have done, and leave the gradients alone.

    Every frame's `logged` then has `dry_run.scale`, `dry_run.clipped`, `dry_run.skipped` and, where there is one,
    `dry_run.threshold`.

    Args:
        transform: what is to be tried out; a number stands for `norm(number)`.

    Returns:
        A transform.

    Raises:
        InputError: it is no transform.

    Example:
        >>> from gradmedic.clip import norm
        >>> dry_run(norm(1.0)).scope
        'model'
    """
    return DryRun(as_transform(transform, "dry_run"))
