"""Transforms one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gradmedic.clip.answers import ask
from gradmedic.clip.base import BaseTransform, Decision, Scope, may_skip, merge, needs_of, scope_of, settle
from gradmedic.clip.spec import Spec
from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.errors import InputError


@dataclass(frozen=True)
class Chain(BaseTransform):
    """Transforms one after the other; see `chain`."""

    transforms: tuple[Any, ...]

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        """That of the whole as soon as one part needs all gradients."""
        return "model" if any(scope_of(each) == "model" for each in self.transforms) else "tensor"

    @property
    def may_skip(self) -> bool:  # type: ignore[override]
        """Whether any part may."""
        return any(may_skip(each) for each in self.transforms)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What the parts need."""
        return frozenset().union(*(needs_of(each) for each in self.transforms))

    def init(self, spec: Spec) -> State:
        """Return the parts' first states."""
        return State(parts={str(at): each.init(spec) for at, each in enumerate(self.transforms)})

    def update(self, summary: GradientSummary, state: State) -> tuple[Decision, State]:
        """Decide part by part; each sees what the ones before it have decided, by arithmetic."""
        decisions: list[Decision] = []
        parts: dict[str, State] = {}
        for at, each in enumerate(self.transforms):
            decision, parts[str(at)] = ask(each, summary, state.parts[str(at)])
            summary = summary.after(decision.operations)
            decisions.append(decision)
        return merge(decisions), State(parts=parts)

    def settle(self, before: State, after: State, skipped: torch.Tensor) -> State:
        """Let each part settle by itself: a history stands still on a skipped step, a guard's counter does not."""
        return State(
            parts={
                str(at): settle(each, before.parts[str(at)], after.parts[str(at)], skipped)
                for at, each in enumerate(self.transforms)
            }
        )


def chain(*transforms: Any) -> Chain:
    """Put transforms one after the other: later ones see the gradients as earlier ones will leave them.

    Args:
        transforms: at least one; a number stands for `norm(number)`.

    Returns:
        A transform. Gradients are still read once and scaled once.

    Raises:
        InputError: something is not a transform.

    Example:
        >>> from gradmedic.clip import norm, value
        >>> len(chain(value(0.1), norm(1.0)).transforms)
        2
    """
    if not transforms:
        raise InputError("chain: expected at least one transform, such as chain(value(0.1), norm(1.0))")
    return Chain(tuple(as_transform(each, "chain") for each in transforms))


def as_transform(given: Any, where: str) -> Any:
    """Return a transform; a number stands for the joint norm, `norm(number)`.

    Raises:
        InputError: it is neither.
    """
    from gradmedic.clip.norm import norm

    if hasattr(given, "init") and hasattr(given, "update"):
        return given
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return norm(given)
    raise InputError(f"{where}: expected a transform such as gm.clip.norm(1.0), or a number, got {given!r}")
