"""One threshold or transform for the first steps, another from then on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gradmedic.clip.answers import ask
from gradmedic.clip.base import BaseTransform, Decision, Scope, may_skip, needs_of, scope_of, settle
from gradmedic.clip.spec import Spec
from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary
from gradmedic.clip.thresholds.base import as_threshold, check_count, limit_of


@dataclass(frozen=True)
class WarmupThreshold:
    """`first` for so many steps, then `then`, which has watched meanwhile; see `warmup`."""

    first: Any
    then: Any
    steps: int

    def begin(self, size: tuple[int, ...], device: torch.device) -> State:
        """Return both first states."""
        return State(parts={"first": self.first.begin(size, device), "then": self.then.begin(size, device)})

    def value(self, signal: torch.Tensor, state: State, summary: GradientSummary) -> torch.Tensor:
        """Return the threshold of the one whose turn it is."""
        name = "first" if summary.step < self.steps else "then"
        return limit_of(getattr(self, name), signal, state.parts[name], summary)

    def observe(self, signal: torch.Tensor, kept: torch.Tensor, valid: torch.Tensor, state: State) -> State:
        """Let both observe, so that the second knows the norms when its turn comes."""
        return State(
            parts={
                "first": self.first.observe(signal, kept, valid, state.parts["first"]),
                "then": self.then.observe(signal, kept, valid, state.parts["then"]),
            }
        )


@dataclass(frozen=True)
class WarmupTransform(BaseTransform):
    """`first` for so many steps, then `then`, which has watched meanwhile; see `warmup`."""

    first: Any
    then: Any
    steps: int

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        """That of the whole as soon as one of them needs all gradients."""
        return "model" if "model" in (scope_of(self.first), scope_of(self.then)) else "tensor"

    @property
    def may_skip(self) -> bool:  # type: ignore[override]
        """Whether either may."""
        return may_skip(self.first) or may_skip(self.then)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What they need."""
        return needs_of(self.first) | needs_of(self.then)

    def init(self, spec: Spec) -> State:
        """Return both first states."""
        return State(parts={"first": self.first.init(spec), "then": self.then.init(spec)})

    def update(self, summary: GradientSummary, state: State) -> tuple[Decision, State]:
        """Let both see the step, and do what the one decides whose turn it is."""
        first, one = ask(self.first, summary, state.parts["first"])
        then, two = ask(self.then, summary, state.parts["then"])
        return (first if summary.step < self.steps else then), State(parts={"first": one, "then": two})

    def settle(self, before: State, after: State, skipped: torch.Tensor) -> State:
        """Let each settle by itself."""
        parts = {
            name: settle(each, before.parts[name], after.parts[name], skipped)
            for name, each in (("first", self.first), ("then", self.then))
        }
        return State(parts=parts)


def warmup(first: Any, then: Any, steps: int) -> WarmupThreshold | WarmupTransform:
    """Use one threshold (or transform) for the first steps of a run, and another from then on.

    Args:
        first: for steps 0 to `steps` - 1: a number, a function of the step, a threshold or a transform.
        then: for all others; it watches from the beginning, so that its history is there when its turn comes.
        steps: how many steps the first has, >= 1.

    Returns:
        A threshold for `norm`, or a transform if either is one (a number then stands for `norm(number)`).

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> from gradmedic.clip import norm, percentile
        >>> norm(warmup(0.5, percentile(95), steps=100)).per
        'model'
    """
    check_count(steps, "steps")
    if any(hasattr(each, "init") and hasattr(each, "update") for each in (first, then)):
        from gradmedic.clip.chain import as_transform

        return WarmupTransform(as_transform(first, "warmup"), as_transform(then, "warmup"), steps)
    return WarmupThreshold(as_threshold(first), as_threshold(then), steps)
